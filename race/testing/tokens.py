"""What the protocols of a scripted model share: estimates of tokens, and tools as a JSON schema describes them."""

from __future__ import annotations

import json

from pydantic import BaseModel, Field, JsonValue

from race.testing.wire import Tool


def tokens(value: object) -> int:
    """An estimate, four bytes each."""
    return max(1, len(json.dumps(value)) // 4)


class Schema(BaseModel):
    """The parameters of a tool, as far as a call must fill them."""

    properties: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    required: list[str] = Field(default_factory=list[str])

    def tool(self, name: str) -> Tool:
        """The tool that has them."""
        types: dict[str, str] = {}
        for parameter, schema in self.properties.items():
            kind = schema.get("type") if isinstance(schema, dict) else None
            kinds = kind if isinstance(kind, list) else [kind]
            types[parameter] = next(
                (k.lower() for k in kinds if isinstance(k, str) and k != "null"), "string"
            )
        return Tool(name, types, tuple(self.required))
