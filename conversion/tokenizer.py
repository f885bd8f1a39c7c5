"""The tokenizer's files, so that `AutoTokenizer.from_pretrained` needs neither network nor code."""

import shutil
from pathlib import Path

from conversion.checkpoint import Checkpoint
from foundation.errors import UserError
from foundation.files import fsync_file, write_json, write_text
from foundation.tokenizer import END_OF_TEXT, TokenizerFiles, load_tokenizer


def write_tokenizer(folder: Path, checkpoint: Checkpoint) -> int:
    """Write vocab.json and merges.txt as they are, tokenizer.json (the fast form) and tokenizer_config.json.

    Returns the id of the document separator, 50256 for GPT-2. Raises UserError when the tokenizer has
    ids that the model has no embedding for.
    """
    from tokenizers import processors

    tokenizer = load_tokenizer(TokenizerFiles(checkpoint.vocab_json, checkpoint.merges_txt))
    ids = tokenizer.get_vocab()
    if max(ids.values()) >= checkpoint.model.vocab_size:
        raise UserError(
            f"{checkpoint.vocab_json} has token id {max(ids.values())}, "
            f"but the model's vocab_size is {checkpoint.model.vocab_size}"
        )
    for path in (checkpoint.vocab_json, checkpoint.merges_txt):
        fsync_file(Path(shutil.copyfile(path, folder / path.name)))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    config = {
        "tokenizer_class": "GPT2TokenizerFast",
        "model_max_length": checkpoint.model.sequence_length,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": END_OF_TEXT for role in ("bos", "eos", "unk")},
    }
    write_json(folder / "tokenizer_config.json", config)
    return ids[END_OF_TEXT]
