"""Models that others trained, and minipar's models for others: Hugging Face's layouts.

    safetensors.py   the file format of the weights
    folder.py        config.json, the weights in one file or several, the tokenizer's files
    layout.py        what a layout says: sizes from config.json, names and orientation of weights
    gpt2.py          GPT-2's layout
    llama.py         Llama's layout

`minipar convert` uses these.
"""

from .folder import load_pretrained, save_pretrained

__all__ = ["load_pretrained", "save_pretrained"]
