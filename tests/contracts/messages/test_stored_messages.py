"""Stored messages stay readable for years. A change of their format changes the golden files."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError
from tests.contracts.messages.samples import BODIES, GOLDEN, samples, written

from banksman.contracts.events import KnownBody
from banksman.contracts.work import RunSignal, RunWork

SAMPLES = dict(samples())
each = pytest.mark.parametrize(("name", "sample"), SAMPLES.items(), ids=SAMPLES)
versioned = {name: sample for name, sample in SAMPLES.items() if "v" in type(sample).model_fields}


def members(union: object) -> set[type]:
    """Return the models of an annotated union."""
    return set(get_args(get_args(union)[0]))


@each
def test_message_is_written_as_its_golden_file(name: str, sample: BaseModel) -> None:
    assert written(sample) == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


@each
def test_golden_file_is_read_as_its_message(name: str, sample: BaseModel) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert type(sample).model_validate_json(text, strict=True) == sample


@each
def test_unknown_field_of_a_newer_writer_is_ignored(name: str, sample: BaseModel) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    newer = text.replace("{", '{"from_the_future": [],', 1)
    assert type(sample).model_validate_json(newer) == sample


@each
def test_message_of_an_older_writer_is_read_without_newer_fields(name: str, sample: BaseModel) -> None:
    """Replicas of two versions run at the same time during an upgrade."""
    fields = type(sample).model_fields
    known = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    later = {field.alias or key for key, field in fields.items() if not field.is_required()}
    older = {key: value for key, value in known.items() if key not in later or key == "type"}
    read = type(sample).model_validate_json(json.dumps(older))
    assert {
        field.alias or key for key, field in fields.items() if key in read.model_fields_set
    } == older.keys()


@pytest.mark.parametrize(("name", "sample"), versioned.items(), ids=versioned)
def test_higher_version_is_refused_by_name(name: str, sample: BaseModel) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    with pytest.raises(ValidationError) as refused:
        type(sample).model_validate_json(text.replace('"v": 1', '"v": 2', 1))
    assert refused.value.errors()[0]["loc"] == ("v",)


@pytest.mark.parametrize("union", [RunWork, RunSignal], ids=["work", "signals"])
def test_every_type_of_work_message_has_a_sample(union: object) -> None:
    assert members(union) <= {type(sample) for sample in SAMPLES.values()}


def test_every_event_type_has_a_sample() -> None:
    assert members(KnownBody) == {type(body) for body in BODIES}


def test_every_golden_file_has_a_sample() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(SAMPLES)
