"""The tokenizer's files, so that `AutoTokenizer.from_pretrained` needs neither network nor code."""

import shutil
from pathlib import Path

from conversion.source import Source
from foundation.errors import UserError
from foundation.files import fsync_file, write_json, write_text
from foundation.tokenizer import END_OF_TEXT, TokenizerFiles, load_tokenizer


def write_tokenizer(folder: Path, source: Source) -> int | None:
    """Write vocab.json and merges.txt as they are, tokenizer.json (the fast form) and tokenizer_config.json.

    Returns the id of the document separator, 50256 for GPT-2; None, having written nothing, where the source has no
    tokenizer. Raises UserError when the tokenizer has ids that the model has no embedding for.
    """
    if source.tokenizer is None:
        return None
    from tokenizers import processors

    files = TokenizerFiles(source.tokenizer / "vocab.json", source.tokenizer / "merges.txt")
    tokenizer = load_tokenizer(files)
    ids = tokenizer.get_vocab()
    if max(ids.values()) >= source.model.vocab_size:
        raise UserError(
            f"{files.vocab} has token id {max(ids.values())}, but the model's vocab_size is {source.model.vocab_size}"
        )
    copy_tokenizer_files(source.tokenizer, folder)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    config = {
        "tokenizer_class": "GPT2TokenizerFast",
        "model_max_length": source.model.sequence_length,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": END_OF_TEXT for role in ("bos", "eos", "unk")},
    }
    write_json(folder / "tokenizer_config.json", config)
    return ids[END_OF_TEXT]


def copy_tokenizer_files(source: Path, folder: Path) -> None:
    """Copy GPT-2's vocab.json and merges.txt."""
    for name in ("vocab.json", "merges.txt"):
        fsync_file(Path(shutil.copyfile(source / name, folder / name)))
