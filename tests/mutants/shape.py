"""The product's shape: services over NATS (R107 to R114)."""

from tests.mutants.mutant import Mutant

GATEWAY = "services/gateway/banksman/gateway/"
INTERFACES = "tests/scenarios/test_interfaces.py::"

MUTANTS = (
    Mutant(
        "R107",
        "a service has no container",
        "compose.yaml",
        "\n  workflows:\n",
        "\n  workflow-service:\n",
        "tests/scenarios/test_structure.py::test_every_service_has_a_container",
    ),
    Mutant(
        "R113",
        "the strict JSON protocol offers tools natively",
        "services/agent/banksman/agent/protocols/__init__.py",
        '        case "json_text":\n            return JsonText()\n',
        '        case "json_text":\n            return Native()\n',
        "tests/scenarios/test_protocols.py::test_calls_written_as_the_prompt_describes_are_accepted",
    ),
    Mutant(
        "R108",
        "the gateway does not publish chat requests",
        GATEWAY + "runs/starts.py",
        "            await self.queue.publish(start, unless_alone=check_queue)\n",
        "            pass\n",
        INTERFACES + "test_every_step_of_a_run_is_a_message_on_its_own_subject",
    ),
    Mutant(
        "R109",
        "a command sees the files of the machine",
        "services/tool-runner/banksman/tool_runner/sandbox/bwrap/recipe.py",
        '        "--bind", str(command.workspace), WORKSPACE,\n',
        '        "--bind", "/root", WORKSPACE,\n',
        "tests/scenarios/test_structure.py::test_a_command_has_no_key_no_network_and_no_other_files",
    ),
    Mutant(
        "R110",
        "decisions are not stored",
        "shared/banksman/bus/storage/approval_slots.py",
        '        return await self._store(subject, reply, new_id("answer-"))\n',
        "        return reply\n",
        INTERFACES + "test_two_gateways_serve_one_conversation",
    ),
    Mutant(
        "R111",
        "a client cannot wait for the outcome of a run",
        GATEWAY + "runs/operations.py",
        'frame, wait_s, detail)\n\n\n@operations.add("chat.new"',
        'frame, 0, detail)\n\n\n@operations.add("chat.new"',
        INTERFACES + "test_http_starts_a_run_and_may_wait_for_its_outcome",
    ),
    Mutant(
        "R112",
        "the steps of a workflow are not reported",
        "services/workflows/banksman/workflows/step_events.py",
        "return tuple(events[known:])",
        "return tuple(events[known:1])",
        "tests/scenarios/test_workflows.py::test_a_workflow_run_behaves_like_any_run",
    ),
    Mutant(
        "R112",
        "the parameters of a user do not reach the workflow",
        GATEWAY + "workflows/operations.py",
        "        parameters=checked.parameters,\n",
        "        parameters={},\n",
        "tests/scenarios/test_workflows.py::test_a_workflow_run_behaves_like_any_run",
    ),
    Mutant(
        "R114",
        "services that publish to NATS directly are not served",
        GATEWAY + "interfaces/nats/endpoints.py",
        "            if not operation.not_over_nats:",
        '            if not operation.not_over_nats and operation.name != "chat.send":',
        INTERFACES + "test_a_service_starts_decides_and_follows_a_run_over_nats",
    ),
)
