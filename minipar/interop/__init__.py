"""Read models that others trained, and write minipar's for others, as Hugging Face's files.

    safetensors.py          read arrays from a file: map it, and check its header
    safetensors_writer.py   write arrays: one file, or several with an index
    config.py               read config.json; refuse what minipar cannot do
    layout.py               a parameter of minipar, and the arrays of a file that make it up
    gpt2.py, llama.py       the two layouts: sizes, and the table of all parameters
    tokenizer.py            the tokenizer's files
    tokenizer_json.py       tokenizer.json, and a refusal of its parts that minipar does not know
    special_tokens.py       begin, end and padding tokens, and other special ones
    hugging_face.py         a folder of either layout as a GPT, and a GPT as such a folder

A layout is one table; loading reads it in one direction, saving in the other.  `minipar convert`
uses these files.
"""

from .hugging_face import load_pretrained, open_pretrained, save_pretrained
from .safetensors import InteropError, open_safetensors
from .safetensors_writer import write_safetensors

__all__ = ["InteropError", "load_pretrained", "open_pretrained", "open_safetensors",
           "save_pretrained", "write_safetensors"]
