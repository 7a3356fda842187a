"""Models that others trained, and minipar's models for others: Hugging Face's files.

    safetensors.py          arrays in a file: what it claims is checked, then it is mapped
    safetensors_writer.py   … written: one file, or several with an index
    config.py               config.json: what the model here does not do is refused
    layout.py               a parameter here, and the arrays of a file that it is made of
    gpt2.py, llama.py       the two layouts: sizes, and the table of all parameters
    tokenizer.py            the tokenizer's files
    folder.py               a folder of either layout as a GPT, and a GPT as such a folder

`minipar convert` uses these.  A layout is one table, which is read in both directions.
"""

from .folder import load_pretrained, open_pretrained, save_pretrained
from .safetensors import InteropError, open_safetensors
from .safetensors_writer import write_safetensors

__all__ = ["InteropError", "load_pretrained", "open_pretrained", "open_safetensors",
           "save_pretrained", "write_safetensors"]
