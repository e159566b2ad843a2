"""Each of the 35 tasks has its tests, here or where its view is tested."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
SYSTEM = "../test_page_with_the_system.py"
TASKS: dict[int, tuple[str, ...]] = {
    1: (
        "test_first_reply.py::test_a_new_user_gets_a_reply_and_approves_a_command",
        f"{SYSTEM}::test_a_user_sends_a_message_approves_and_reads_the_report",
    ),
    2: ("test_beginning.py::test_a_key_is_entered_and_a_model_is_chosen_and_named_in_the_composer",),
    3: ("test_deciding.py::test_a_long_command_is_approved_without_scrolling",),
    4: ("test_deciding.py::test_a_write_is_edited_before_it_happens",),
    5: ("test_deciding.py::test_a_rejection_with_a_reason_lets_the_agent_continue",),
    6: ("test_deciding.py::test_a_rejection_that_stops_says_what_will_not_run",),
    7: ("test_deciding.py::test_three_of_four_calls_are_approved",),
    8: ("test_deciding.py::test_a_beginning_of_commands_is_allowed_on_the_card_and_withdrawn_under_rules",),
    9: ("test_deciding.py::test_the_second_of_two_people_sees_what_the_first_one_edited",),
    10: ("test_deciding.py::test_a_decision_of_last_week_is_found",),
    11: ("test_conversing.py::test_a_message_is_queued_another_one_steers_and_the_run_is_stopped",),
    12: (
        "test_conversing.py::test_a_message_is_edited_and_a_reply_is_asked_for_again_and_every_version_stays",
    ),
    13: (
        "test_conversing.py::test_a_message_is_edited_and_a_reply_is_asked_for_again_and_every_version_stays",
    ),
    14: (
        "test_conversing.py::"
        "test_a_conversation_goes_on_from_an_earlier_reply_and_the_later_one_is_found_again",
    ),
    15: ("test_conversing.py::test_the_thinking_of_a_finished_reply_is_read",),
    16: (
        "test_conversing.py::test_a_reply_goes_on_after_a_reload_and_in_a_second_tab",
        "test_files.py::test_a_tab_that_is_opened_during_a_command_shows_its_output",
    ),
    17: (
        "test_conversing.py::test_a_draft_stays_in_its_conversation_through_a_reload_and_a_new_sign_in",
        "../test_drafts.py::test_a_draft_stays_in_its_conversation_through_a_reload_and_a_sign_in",
    ),
    18: (
        "test_conversing.py::test_a_reply_survives_a_gateway_that_is_killed_or_frozen_and_a_missing_network",
    ),
    19: ("test_conversing.py::test_the_cost_of_a_run_of_the_conversation_and_of_the_month_is_found",),
    20: ("test_conversing.py::test_two_runs_are_compared",),
    21: ("test_files.py::test_every_file_that_a_command_changed_is_found_with_its_difference",),
    22: ("test_files.py::test_picked_dropped_and_pasted_files_reach_the_workspace_and_all_are_downloaded",),
    23: ("test_files.py::test_the_output_of_a_long_command_is_followed_and_the_command_is_stopped",),
    24: ("test_files.py::test_a_document_a_screenshot_and_a_photo_of_a_phone_reach_the_model",),
    25: (
        "test_beginning.py::test_a_workflow_is_started_by_its_form_and_by_a_command",
        "test_beginning.py::test_a_workflow_is_started_in_plain_language",
        "../test_workflow_forms.py::test_plain_language_fills_a_form_that_names_what_does_not_fit",
    ),
    26: (
        "test_managing.py::test_a_workflow_is_built_scheduled_and_its_history_is_read",
        f"{SYSTEM}::test_a_workflow_is_built_run_and_scheduled_on_the_page_and_is_there_after_a_restart",
    ),
    27: ("test_managing.py::test_a_server_of_tools_is_connected_approved_and_its_change_refused",),
    28: ("test_beginning.py::test_an_assistant_gets_a_skill_and_is_used",),
    29: (
        "test_beginning.py::test_a_colleague_is_invited_by_a_link_and_reads_the_one_shared_conversation",
        "test_beginning.py::test_a_conversation_is_shared_with_one_person_only",
    ),
    30: ("test_finding.py::test_a_search_lands_at_the_hit",),
    31: (
        "test_finding.py::test_a_conversation_is_exported_and_imported_without_loss",
        "test_finding.py::test_an_export_of_another_product_is_imported",
    ),
    32: ("test_finding.py::test_everything_is_done_from_the_palette",),
    33: (
        "test_finding.py::test_texts_that_are_hard_to_show_fit_the_window",
        "test_finding.py::test_the_newest_of_two_thousand_messages_are_read",
        "../test_page_states.py::test_a_long_conversation_draws_the_runs_that_come_near_the_view",
    ),
    34: ("test_managing.py::test_an_operator_finds_a_dead_letter_a_waiting_queue_and_a_tenant_at_its_limit",),
    35: ("test_finding.py::test_twelve_conversations_are_in_view",),
}
"""Tests by the number of the task; paths are relative to this folder."""


@cache
def _tests(file: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(one.name for one in found if isinstance(one, ast.AsyncFunctionDef | ast.FunctionDef))


def test_each_of_the_35_tasks_has_tests_that_exist() -> None:
    missing = [
        test
        for tests in TASKS.values()
        for file, _, test in (one.partition("::") for one in tests)
        if test not in _tests((FOLDER / file).resolve())
    ]
    assert (sorted(TASKS), missing) == (list(range(1, 36)), [])


def test_each_task_is_played_on_the_real_system_in_each_way() -> None:
    """In both themes, at 390 and 1280 px, in English and German, by mouse and by keyboard alone."""
    played = {
        task
        for task, tests in TASKS.items()
        for file, _, test in (one.partition("::") for one in tests)
        if not file.startswith("..") and test in _in_each_way(FOLDER / file)
    }
    assert played == set(TASKS)


@cache
def _in_each_way(file: Path) -> frozenset[str]:
    """Return the tests with the decorator `ways()` without arguments."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(
        one.name
        for one in found
        if isinstance(one, ast.AsyncFunctionDef)
        and any(ast.unparse(decorator) == "ways()" for decorator in one.decorator_list)
    )
