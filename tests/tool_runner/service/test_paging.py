"""A long output over the real runner, from the command to the model's last page (R41 Q2)."""

from __future__ import annotations

from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.owner import Owner

from banksman.bus.names import OUTPUTS
from banksman.bus.secrets import opened
from banksman.bus.storage.objects import Objects
from banksman.deployment.users import GATEWAY_FILES


async def test_megabyte_of_output_is_paged_and_stored_completely(
    owner: Owner, runners_nats: SecuredNats
) -> None:
    result = await owner.bash("seq -w 150000")
    expected = "".join(f"{number:06d}\n" for number in range(1, 150_001))

    pages, offset = "", 0
    while offset is not None:
        part = await owner.call("read_file", path=result.content["full_output_path"], byte_offset=offset)
        assert len(str(part.content["content"])) <= 10_000
        pages += str(part.content["content"])
        offset = part.content.get("next_byte_offset")

    assert len(expected) > 1_000_000
    assert pages == expected
    assert result.output_ref is not None and result.output_key is not None
    async with await runners_nats.connect(GATEWAY_FILES) as files:
        stored = await Objects(files, OUTPUTS).get(result.output_ref)
    assert opened(stored, result.output_key, result.output_ref) == expected.encode()


async def test_call_pages_through_a_file_of_five_megabytes(owner: Owner) -> None:
    made = await owner.bash("seq -w 750000 > numbers.txt; wc -c < numbers.txt")
    total = int(str(made.content["stdout"]))

    seen, offset, last = 0, 0, ""
    while offset is not None:
        part = await owner.call("read_file", path="numbers.txt", byte_offset=offset)
        assert part.content["byte_offset"] == seen
        seen += len(str(part.content["content"]))
        last = str(part.content["content"])
        offset = part.content.get("next_byte_offset")

    assert seen == total > 5_000_000
    assert last.endswith("749999\n750000\n")
