"""YAML as other people write it: loaded safely, within bounds, with its problems as text.

PyYAML stays in here. Only the safe loader is used. A few lines of aliases can stand for more nodes than memory holds:
they are refused, or, where `aliases` lets them in, what they stand for is bounded in size and depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 50
_MAX_EXPANDED = 1 << 20
"""Nodes and characters of a document with aliases, each alias counted as what it stands for."""


class YamlInvalid(Exception):
    """The text cannot be used."""


def load_mapping(data: bytes, *, aliases: bool = False) -> dict[str, Any]:
    """The mapping that a document consists of. Raises: YamlInvalid."""
    value = _load(data, aliases=aliases)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise YamlInvalid("not a mapping of names")
    return value


def load_list(data: bytes) -> list[Any]:
    """The list that a document consists of. Raises: YamlInvalid."""
    value = _load(data, aliases=False)
    if not isinstance(value, list):
        raise YamlInvalid("not a list")
    return value


@dataclass
class _Extent:
    """What a node comes to with its aliases expanded."""

    anchor: str | None = None
    size: int = 1
    height: int = 1
    """Collections from here down."""

    def add(self, child: _Extent) -> None:
        self.size += child.size
        self.height = max(self.height, child.height + 1)


def _load(data: bytes, *, aliases: bool) -> Any:
    import yaml

    try:
        text = data.decode()
        _check(yaml.parse(text, yaml.SafeLoader), aliases=aliases)
        return yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise YamlInvalid(f"not UTF-8 (byte {error.start})") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlInvalid(" ".join(str(error).split())) from None
    except (LookupError, AttributeError):  # how PyYAML refuses a value that is not of the type in its tag
        raise YamlInvalid("a value that is not of the type in its tag (!!name)") from None


def _check(events: Iterable[Any], *, aliases: bool) -> None:
    """Raises: YamlInvalid. Stops at the first event that is too much: the parser reads no further than that."""
    import yaml

    path = [_Extent()]
    finished: dict[str | None, _Extent] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            path.append(_Extent(event.anchor))
            _check_depth(path)
        elif isinstance(event, yaml.CollectionEndEvent):
            node = path.pop()
            finished[node.anchor] = node
            path[-1].add(node)
        elif isinstance(event, yaml.ScalarEvent):
            finished[event.anchor] = _Extent(size=1 + len(event.value), height=0)
            path[-1].add(finished[event.anchor])
        elif isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise YamlInvalid("aliases (*name) are not supported")
            if event.anchor not in finished:
                raise YamlInvalid(f"an alias (*{event.anchor}) of nothing before it")
            path[-1].add(finished[event.anchor])
            _check_depth(path)
            if sum(extent.size for extent in path) > _MAX_EXPANDED:
                raise YamlInvalid("too large with its aliases (*name) expanded")


def _check_depth(path: list[_Extent]) -> None:
    if len(path) - 2 + path[-1].height > _MAX_DEPTH:
        raise YamlInvalid(f"nested more than {_MAX_DEPTH} deep")


def dump(value: dict[str, Any]) -> bytes:
    """A mapping in the order of its keys; texts of several lines as blocks."""
    import yaml

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(str, represent)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)).encode()
