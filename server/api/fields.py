"""Fields that several routes share in bodies and parameters."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class RequestBody(BaseModel):
    # A misspelt field is refused, because ignoring it could drop a budget.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _no_flood_of_fields(cls, data: object) -> object:
        # Pydantic makes an error of a kilobyte for each unknown field.
        if isinstance(data, dict) and len(data) > 2 * len(cls.model_fields) + 20:
            raise ValueError(f"{len(data)} fields are too many: {cls.__name__} has {len(cls.model_fields)}")
        return data


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"a name has characters that can't be printed: {text!r}")
    return text


Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_printable)]
WorkloadHash = Annotated[str, Field(pattern="^[0-9A-Za-z_-]{1,128}$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
