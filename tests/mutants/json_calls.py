"""Calls as JSON text, the loop and its limits (R1 to R16)."""

from tests.mutants.mutant import Mutant

AGENT = "services/agent/banksman/agent/"
RUNS = "shared/banksman/runs/"
JSON_CALLS = "tests/scenarios/test_json_calls.py::"

MUTANTS = (
    Mutant(
        "R1",
        "the tool's name is read from another key",
        "shared/banksman/prompting/templates.py",
        'TOOL_KEY = "tool"',
        'TOOL_KEY = "name"',
        JSON_CALLS + "test_results_go_back_to_the_model_until_it_replies_in_text",
    ),
    Mutant(
        "R2",
        "results are not added to the history",
        RUNS + "fold_calls.py",
        "history=_with_results(state.history, added))",
        "history=state.history)",
        JSON_CALLS + "test_results_go_back_to_the_model_until_it_replies_in_text",
    ),
    Mutant(
        "R3",
        "a terminating call does not end the run",
        RUNS + "steps.py",
        "if c.call.terminate and c.result is not None",
        "if not c.call.id and c.result is not None",
        JSON_CALLS + "test_a_terminating_call_ends_the_run",
    ),
    Mutant(
        "R4",
        "the prompt does not list parameters",
        "shared/banksman/prompting/enhance.py",
        "    for name, schema in properties.items():\n",
        "    for name, schema in ():\n",
        "tests/prompting/test_enhance.py::test_prompt_describes_tools_and_parameters_by_category",
    ),
    Mutant(
        "R5",
        "the stored prompt of an id is not used",
        AGENT + "model/step.py",
        "        return entry.value.content\n",
        "        return DEFAULT_PROMPT\n",
        "tests/scenarios/test_prompts.py::test_the_model_receives_the_enhanced_prompt",
    ),
    Mutant(
        "R6",
        "the loop ends after the first results",
        RUNS + "steps.py",
        "    if run.iteration >= most:\n",
        "    if run.iteration >= 1:\n",
        JSON_CALLS + "test_results_go_back_to_the_model_until_it_replies_in_text",
    ),
    Mutant(
        "R7",
        "the iteration limit ends nothing",
        RUNS + "steps.py",
        "    if run.iteration >= most:\n",
        "    if run.iteration >= most + 100:\n",
        "tests/scenarios/test_limits.py::test_the_iteration_limit_ends_the_run_with_one_complete_event",
    ),
    Mutant(
        "R8",
        "the time limit is three minutes longer",
        RUNS + "steps.py",
        "seconds=run.settings.limits.run_timeout_s + run.waited_s)",
        "seconds=run.settings.limits.run_timeout_s + 180 + run.waited_s)",
        "tests/scenarios/test_limits.py::test_the_time_limit_ends_a_run_whose_model_is_silent",
    ),
    Mutant(
        "R9",
        "`terminate` may be anything",
        AGENT + "protocols/json_text.py",
        "        if isinstance(value, bool):\n            return value\n",
        "        if True:\n            return bool(value)\n",
        "tests/agent/protocols/test_json_text.py::test_attempt_that_breaks_a_rule_is_malformed_at_its_position",
    ),
    Mutant(
        "R10",
        "malformed calls are retried without end",
        RUNS + "steps.py",
        "MAX_MALFORMED = 3",
        "MAX_MALFORMED = 30",
        JSON_CALLS + "test_three_malformed_calls_in_a_row_end_the_run",
    ),
    Mutant(
        "R11",
        "text without a call is malformed",
        AGENT + "protocols/json_text.py",
        "        if QUOTED_KEY in text and _LEADING_BRACE.match(text):\n",
        "        if text:\n",
        JSON_CALLS + "test_plain_text_is_the_final_reply_without_a_loop",
    ),
    Mutant(
        "R12",
        "calls that need approval run at once",
        RUNS + "approval/policy.py",
        'return "ask" if definition.requires_approval else "auto"',
        'return "auto"',
        "tests/scenarios/test_approvals.py::test_a_call_that_needs_approval_waits_for_the_decision",
    ),
    Mutant(
        "R13",
        "a call runs while an earlier one waits for a decision",
        "shared/banksman/runs/steps.py",
        'lambda call: call.gate != "waiting", run.open_calls)',
        "lambda call: True, run.open_calls)",
        "tests/scenarios/test_approvals.py::"
        "test_what_follows_a_call_that_waits_has_not_run_before_its_decision",
    ),
    Mutant(
        "R13",
        "a run continues after a rejection",
        RUNS + "steps.py",
        'run.settings.tools.on_reject == "abort" and',
        "False and",
        "tests/scenarios/test_approvals.py::test_a_rejection_ends_the_run_without_executing_later_calls",
    ),
    Mutant(
        "R14",
        "a frontend can list tools on the endpoint that was removed",
        "services/gateway/banksman/gateway/workflows/operations.py",
        '@operations.add("workflow.list", "GET /workflows")\n',
        '@operations.add("tool.available", "GET /tools/available")\n'
        '@operations.add("workflow.list", "GET /workflows")\n',
        JSON_CALLS + "test_there_is_no_endpoint_for_tools",
    ),
    Mutant(
        "R15",
        "workflows are not listed",
        "services/workflows/banksman/workflows/registry.py",
        "        return tuple(found[name] for name in sorted(found))\n",
        "        return ()\n",
        "tests/scenarios/test_workflows.py::test_workflows_are_listed_by_category_with_their_forms",
    ),
    Mutant(
        "R16",
        "the text of a call is streamed to the frontend",
        AGENT + "protocols/json_text.py",
        "        return CallFilter()\n",
        "        from banksman.agent.protocols.native import Native\n\n"
        "        return Native().delta_filter()\n",
        JSON_CALLS + "test_no_part_of_a_call_reaches_the_client_as_text",
    ),
    Mutant(
        "R16",
        "the page parses the texts of agents",
        "services/gateway/banksman/gateway/interfaces/page/static/components/timeline.mjs",
        "const value = entry.isResult ? parsed(entry.text) : undefined;",
        "const value = parsed(entry.text);",
        "tests/e2e/test_timeline.py::test_a_text_that_resembles_a_call_is_shown_as_text",
    ),
)
