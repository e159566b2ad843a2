"""The four tools of a workspace (R62 to R77)."""

from tests.mutants.mutant import Mutant

TOOLS = "services/tool-runner/banksman/tool_runner/tools/"
FILES = "services/tool-runner/banksman/tool_runner/workspaces/files.py"
BEHAVIOUR = "tests/tool_runner/tools/"
FILE_TESTS = "tests/tool_runner/workspaces/test_files.py::"
SCENARIOS = "tests/scenarios/test_workspace_tools.py::"

MUTANTS = (
    Mutant(
        "R62",
        "tools are offered without their schema",
        "services/agent/banksman/agent/providers/anthropic_request.py",
        '    schema.setdefault("type", "object")\n',
        '    schema = {"type": "object"}\n',
        SCENARIOS + "test_the_four_workspace_tools_are_offered_in_the_vendors_schema",
    ),
    Mutant(
        "R63",
        "a runner has no web_fetch",
        "services/tool-runner/banksman/tool_runner/lifecycle.py",
        "            WebFetchTool(egress, limits, converter),\n",
        "",
        BEHAVIOUR + "test_toolbox.py::test_the_tools_are_described_for_a_model",
    ),
    Mutant(
        "R63",
        "other tools displace the four",
        "shared/banksman/prompting/enhance.py",
        "needs.used | NEVER_DROPPED",
        "needs.used",
        "tests/prompting/test_relevance.py::test_the_four_workspace_tools_are_never_displaced",
    ),
    Mutant(
        "R64",
        "the exit code is not returned",
        TOOLS + "bash.py",
        '            "exit_code": outcome.exit_code,\n',
        '            "exit_code": 0,\n',
        BEHAVIOUR + "test_bash.py::test_stdout_stderr_and_exit_code_are_returned",
    ),
    Mutant(
        "R65",
        "commands start outside the workspace",
        "services/tool-runner/banksman/tool_runner/sandbox/bwrap/recipe.py",
        '"--chdir", command.directory,',
        '"--chdir", "/",',
        BEHAVIOUR + "test_bash.py::test_commands_run_in_the_workspace_and_their_files_remain",
    ),
    Mutant(
        "R66",
        "a skill cannot be executed",
        FILES,
        "_NEW_PROGRAM_MODE = 0o755",
        "_NEW_PROGRAM_MODE = 0o000",
        "tests/tool_runner/workspaces/test_first_files.py::test_a_workspace_starts_with_the_files_of_its_assistant",
    ),
    Mutant(
        "R67",
        "the text of a file is not returned",
        TOOLS + "read_file.py",
        '            "path": path,\n            "content": shown.text,\n',
        '            "path": path,\n            "content": "",\n',
        FILE_TESTS + "test_a_file_is_read_by_its_path_in_the_workspace",
    ),
    Mutant(
        "R68",
        "a missing file is no error",
        TOOLS + "read_file.py",
        "        except PathRefused as refused:\n"
        '            return failure("tool_error", str(refused), path=path)\n',
        "        except PathRefused:\n"
        '            return ToolOutcome(value={"success": True, "content": ""})\n',
        FILE_TESTS + "test_missing_file_is_reported_as_an_error",
    ),
    Mutant(
        "R69",
        "the kernel does not keep a path below the workspace",
        "services/tool-runner/banksman/tool_runner/workspaces/beneath.py",
        "_INSIDE = Resolve.BENEATH | Resolve.NO_MAGICLINKS",
        "_INSIDE = Resolve.NO_MAGICLINKS",
        FILE_TESTS + "test_no_path_reads_outside_the_workspace",
    ),
    Mutant(
        "R70",
        "missing directories are not created",
        FILES,
        "            directory = _descend(directory, parent, identity)\n",
        "            directory = os.open(parent, _DIRECTORY, dir_fd=directory)\n",
        FILE_TESTS + "test_write_creates_missing_directories",
    ),
    Mutant(
        "R71",
        "an overwrite is reported as a new file",
        FILES,
        "        return existing is None\n",
        "        return True\n",
        FILE_TESTS + "test_an_overwrite_is_confirmed_and_keeps_the_mode",
    ),
    Mutant(
        "R72",
        "a write follows links",
        FILES,
        "        existing = _existing_mode(path, directory, name)\n",
        "        existing = None\n",
        FILE_TESTS + "test_write_outside_or_through_a_link_is_refused",
    ),
    Mutant(
        "R74",
        "JSON is not shown as text",
        TOOLS + "web_fetch.py",
        r"application/(.*\+)?(json|xml)",
        r"application/(.*\+)?(xml)",
        BEHAVIOUR + "test_web_fetch.py::test_a_json_api_is_returned_for_analysis",
    ),
    Mutant(
        "R75",
        "a failed fetch has no details",
        TOOLS + "web_fetch.py",
        'f"web_fetch of {url[:500]} failed: {_reason(failed)}"',
        '"failed"',
        BEHAVIOUR + "test_web_fetch.py::test_a_refused_connection_is_an_error_with_details",
    ),
    Mutant(
        "R76",
        "a read does not see what was written",
        FILES,
        "open_beneath(root, _as_stored(root, relative(path)), os.O_RDONLY",
        'open_beneath(root, "nothing", os.O_RDONLY',
        SCENARIOS + "test_a_file_written_by_one_call_is_readable_and_executable_by_the_next",
    ),
    Mutant(
        "R77",
        "a result is text of the user",
        "services/agent/banksman/agent/providers/anthropic_request.py",
        '                yield "user", [_result(call) for call in item.calls]\n',
        '                yield "user", [_text(result_text(call.message)) for call in item.calls]\n',
        SCENARIOS + "test_results_reach_the_model_in_the_vendors_format",
    ),
    Mutant(
        "R73",
        "a page is not requested with GET",
        "services/tool-runner/banksman/tool_runner/egress/client.py",
        '_PAGE = Request("GET", ',
        '_PAGE = Request("POST", ',
        BEHAVIOUR + "test_web_fetch.py::test_page_is_returned_as_text",
    ),
    Mutant(
        "R73",
        "a fetch may take a minute",
        "shared/banksman/contracts/workspace_tools.py",
        "FETCH_TIMEOUT_S = 30",
        "FETCH_TIMEOUT_S = 60",
        BEHAVIOUR + "test_web_fetch.py::test_a_fetch_has_thirty_seconds_for_all_its_redirects",
    ),
)
