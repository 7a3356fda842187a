"""Read config.json: values of the right type, and an error of one line for unsupported ones."""

from pathlib import Path
from typing import Any, NoReturn

from .safetensors import InteropError, read_json

ACCEPTED_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,),
                                                str: (str,), dict: (dict,)}


class Config:
    """The values of a config.json; null counts as absent.  All methods raise InteropError."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = ""):
        self.path, self.values, self.prefix = path, values, prefix

    @classmethod
    def read(cls, folder: Path) -> "Config":
        """The config.json of a folder."""
        return cls(folder / "config.json", read_json(folder / "config.json"))

    @classmethod
    def read_if_there(cls, folder: Path, name: str) -> "Config":
        """The values of another such file; no values if it is not there."""
        return cls(folder / name, read_json(folder / name) if (folder / name).exists() else {})

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of this type, or the default."""
        value = self.values.get(key)
        if value is None:
            return default
        allowed = ACCEPTED_TYPES[kind]
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            self.refuse(key, f"{'an' if kind is int else 'a'} {kind.__name__} was expected")
        try:
            return kind(value)
        except OverflowError:
            return self.refuse(key, "it is too large")

    def need(self, key: str, kind: type) -> Any:
        """A value of this type, which must be there."""
        value = self.get(key, kind)
        if value is None:
            raise InteropError(f"{self.path} has no {self.prefix}{key}: add it")
        return value

    def inner(self, key: str) -> "Config":
        """The values under a key; no values if it is absent."""
        return Config(self.path, self.get(key, dict, {}), f"{self.prefix}{key}.")

    def expect(self, key: str, *allowed: Any, default: Any = None) -> Any:
        """The value of a key that must be one of `allowed`; None among these allows its absence."""
        value = self.values.get(key)
        value = default if value is None else value
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool)
                   for one in allowed):
            known = [one for one in allowed if one is not None]
            self.refuse(key, f"only {' or '.join(map(str, known))} is known here" if known
                        else "the model here has nothing like it")
        return value

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise InteropError about the value of a key."""
        value = f"{self.values.get(key)!r:.80}"
        raise InteropError(f"{self.path}: {self.prefix}{key} is {value}: {why}")

    def refuse_quantized(self) -> None:
        """Refuse a model whose weights are codes."""
        if self.values.get("quantization_config") is not None:
            self.refuse("quantization_config", "weights of a quantized model are not read: take "
                        "the model that it was made from, and minipar quantize")
