"""The lines of the interfaces' tables, each with a test that fails when the line is not true."""

from __future__ import annotations

RESOURCES = "gateway/http/test_resources.py::"
CONTEXT = "gateway/http/test_context.py::"
CONVERSATIONS = CONTEXT + "test_conversations_are_created_listed_searched_renamed_and_deleted"
SCHEDULES = "gateway/http/test_schedules.py::"
WEBHOOKS = "gateway/webhooks/test_webhooks.py::"
KEYS = "gateway/identity/test_api_keys.py::"
PASSTHROUGH = "gateway/passthrough/test_passthrough.py::"
SOCKET = "gateway/websocket/test_websocket.py::"
ENVELOPE = "gateway/websocket/test_envelope.py::"
CONTRACT = "gateway/passthrough/test_wire_contract.py::"
INTERFACES = "scenarios/test_interfaces.py::"
CONTEXT_CHAT = "scenarios/test_context_chat.py::"

ENDPOINTS = {
    "GET /v1/models": CONTRACT + "test_models_are_listed_from_memory_with_all_fields",
    "GET /v1/models/{model}": PASSTHROUGH + "test_models_of_the_upstreams_are_listed_and_read",
    "POST /v1/chat/completions": PASSTHROUGH + "test_the_bytes_of_a_body_reach_the_upstream_unchanged",
    "POST /v1/responses": PASSTHROUGH
    + "test_the_responses_api_of_the_demo_model_streams_through_passthrough",
    "POST /v1/messages": PASSTHROUGH + "test_an_anthropic_client_streams_and_counts_tokens",
    "POST /v1/messages/count_tokens": PASSTHROUGH + "test_an_anthropic_client_streams_and_counts_tokens",
    "GET /v1/system-prompts": RESOURCES + "test_a_repeated_idempotency_key_creates_a_system_prompt_once",
    "POST /v1/system-prompts": RESOURCES + "test_a_repeated_idempotency_key_creates_a_system_prompt_once",
    "GET /v1/system-prompts/{prompt_id}": RESOURCES + "test_a_deleted_system_prompt_is_missing",
    "PUT /v1/system-prompts/{prompt_id}": "scenarios/test_prompts.py::"
    "test_a_prompt_can_be_changed_and_the_next_run_uses_it",
    "DELETE /v1/system-prompts/{prompt_id}": RESOURCES + "test_a_deleted_system_prompt_is_missing",
    "GET /v1/system-prompts/{prompt_id}/enhanced": RESOURCES
    + "test_an_enhanced_prompt_contains_base_tools_and_diagram_instructions",
    "GET /context/conversations": CONTEXT
    + "test_conversations_are_created_listed_searched_renamed_and_deleted",
    "POST /context/conversations": CONTEXT
    + "test_conversations_are_created_listed_searched_renamed_and_deleted",
    "GET /context/conversations/{conversation_id}": CONTEXT
    + "test_conversations_are_created_listed_searched_renamed_and_deleted",
    "PATCH /context/conversations/{conversation_id}": CONTEXT
    + "test_conversations_are_created_listed_searched_renamed_and_deleted",
    "DELETE /context/conversations/{conversation_id}": CONTEXT
    + "test_conversations_are_created_listed_searched_renamed_and_deleted",
    "GET /context/search": "gateway/conversations/test_search.py::"
    "test_messages_are_found_by_their_text_newest_first",
    "GET /context/conversations/{conversation_id}/events": CONTEXT
    + "test_a_run_is_started_and_read_until_its_outcome",
    "POST /context/conversations/{conversation_id}/runs": CONTEXT
    + "test_a_run_is_started_and_read_until_its_outcome",
    "GET /context/conversations/{conversation_id}/runs": CONTEXT
    + "test_a_run_is_started_and_read_until_its_outcome",
    "GET /context/runs/{run_id}": CONTEXT + "test_a_run_is_started_and_read_until_its_outcome",
    "POST /context/runs/{run_id}/cancel": CONTEXT
    + "test_a_run_is_cancelled_over_http_by_its_own_tenant_only",
    "POST /v1/chat": CONTEXT + "test_chat_starts_a_run_in_a_new_conversation",
    "GET /context/approvals": CONTEXT + "test_approvals_are_listed_and_decided",
    "POST /context/approvals/{approval_id}": CONTEXT + "test_approvals_are_listed_and_decided",
    "GET /context/conversations/{conversation_id}/files": RESOURCES
    + "test_files_are_uploaded_listed_downloaded_and_deleted",
    "PUT /context/conversations/{conversation_id}/files/{path}": RESOURCES
    + "test_files_are_uploaded_listed_downloaded_and_deleted",
    "GET /context/conversations/{conversation_id}/files/{path}": RESOURCES
    + "test_files_are_uploaded_listed_downloaded_and_deleted",
    "DELETE /context/conversations/{conversation_id}/files/{path}": RESOURCES
    + "test_files_are_uploaded_listed_downloaded_and_deleted",
    "GET /context/runs/{run_id}/tool-calls/{tool_call_id}/output": RESOURCES
    + "test_the_complete_output_of_a_call_is_downloaded",
    "GET /context/assistants": RESOURCES + "test_assistants_are_stored_with_a_revision",
    "POST /context/assistants": RESOURCES + "test_assistants_are_stored_with_a_revision",
    "GET /context/assistants/{assistant_id}": RESOURCES + "test_assistants_are_stored_with_a_revision",
    "PUT /context/assistants/{assistant_id}": RESOURCES + "test_assistants_are_stored_with_a_revision",
    "DELETE /context/assistants/{assistant_id}": RESOURCES + "test_assistants_are_stored_with_a_revision",
    "GET /workflows": "scenarios/test_workflows.py::test_workflows_are_listed_by_category_with_their_forms",
    "GET /workflows/categories": "scenarios/test_workflows.py::"
    "test_workflows_are_listed_by_category_with_their_forms",
    "GET /workflows/{name}": "scenarios/test_workflows.py::"
    "test_workflows_are_listed_by_category_with_their_forms",
    "POST /workflows/{name}/runs": RESOURCES + "test_a_workflow_is_chosen_and_started",
    "POST /agui": "gateway/agui/test_agui.py::test_a_run_is_a_stream_of_agui_events",
    "POST /v1/ws-ticket": RESOURCES + "test_a_ticket_opens_one_websocket",
    "POST /context/chat": CONTEXT_CHAT + "test_context_chat_returns_the_outcome_or_the_open_approval_request",
    "POST /context/chat/completions": CONTEXT_CHAT
    + "test_an_approval_is_a_comment_of_the_stream_and_the_run_waits",
    "POST /context/chat/messages": CONTEXT_CHAT + "test_anthropics_sdk_completes_a_run_of_the_agent",
    "GET /context/tools": "scenarios/test_tool_registry.py::"
    "test_tools_are_listed_and_read_by_name_over_every_interface",
    "GET /context/tools/{name}": "scenarios/test_tool_registry.py::"
    "test_tools_are_listed_and_read_by_name_over_every_interface",
    "POST /workflows/parse": "scenarios/test_workflows.py::"
    "test_a_command_and_plain_language_fill_the_form_of_a_workflow",
    "GET /context/schedules": SCHEDULES + "test_another_tenant_sees_no_schedule",
    "POST /context/schedules": SCHEDULES
    + "test_a_prompt_runs_at_its_time_in_a_new_conversation_and_shows_the_state_of_its_run",
    "GET /context/schedules/{schedule_id}": SCHEDULES
    + "test_a_schedule_can_be_sent_back_as_it_was_read_to_pause_and_resume_it",
    "PUT /context/schedules/{schedule_id}": SCHEDULES
    + "test_a_schedule_can_be_sent_back_as_it_was_read_to_pause_and_resume_it",
    "DELETE /context/schedules/{schedule_id}": SCHEDULES + "test_a_deleted_schedule_starts_nothing",
    "POST /context/schedules/{schedule_id}/run": SCHEDULES
    + "test_a_user_runs_a_schedule_now_and_a_repeated_request_starts_no_second_run",
    "GET /context/keys": KEYS + "test_a_key_is_shown_once_stored_as_its_digest_and_revoked_at_every_gateway",
    "POST /context/keys": KEYS + "test_a_key_is_shown_once_stored_as_its_digest_and_revoked_at_every_gateway",
    "DELETE /context/keys/{key_id}": KEYS
    + "test_a_key_is_shown_once_stored_as_its_digest_and_revoked_at_every_gateway",
    "GET /context/identity-providers": "gateway/oidc/test_oidc.py::"
    "test_an_administrator_reads_which_roles_of_the_provider_grant_which_rights",
    "GET /context/webhooks": WEBHOOKS
    + "test_a_replaced_webhook_keeps_its_secret_and_gets_the_events_that_it_names_now",
    "POST /context/webhooks": WEBHOOKS
    + "test_a_finished_run_and_an_approval_request_arrive_signed_without_data_of_the_vendor",
    "GET /context/webhooks/{webhook_id}": WEBHOOKS
    + "test_a_replaced_webhook_keeps_its_secret_and_gets_the_events_that_it_names_now",
    "PUT /context/webhooks/{webhook_id}": WEBHOOKS
    + "test_a_replaced_webhook_keeps_its_secret_and_gets_the_events_that_it_names_now",
    "DELETE /context/webhooks/{webhook_id}": WEBHOOKS
    + "test_a_deleted_webhook_gets_nothing_and_another_one_the_next_event",
    "POST /context/webhooks/{webhook_id}/test": WEBHOOKS
    + "test_a_message_is_sent_again_with_the_same_id_until_the_receiver_confirms_it",
    "GET /context/webhooks/{webhook_id}/deliveries": WEBHOOKS
    + "test_a_message_that_is_given_up_is_a_dead_letter_and_its_replay_is_delivered",
    "POST /a2a": "gateway/a2a/test_a2a.py::test_a_message_is_a_task_whose_text_is_streamed",
    "GET /.well-known/agent-card.json": "gateway/a2a/test_a2a.py::"
    "test_the_card_names_the_endpoint_and_needs_no_key",
}
"""Sections 1 and 8: method and path, as the OpenAPI document has them."""

FRAMES = {
    "hello": SOCKET + "test_a_wrong_token_closes_after_hello_and_is_401_at_the_upgrade",
    "auth.refresh": "gateway/websocket/test_refresh.py::test_a_refreshed_connection_acts_with_the_new_token",
    "ping": ENVELOPE + "test_every_frame_accepts_the_conversation_of_its_envelope",
    "conversation.create": SOCKET + "test_the_creator_of_a_conversation_sees_its_events_without_subscribing",
    "subscribe": SOCKET + "test_a_subscriber_receives_stored_events_and_then_new_ones",
    "unsubscribe": ENVELOPE + "test_every_frame_accepts_the_conversation_of_its_envelope",
    "chat.send": SOCKET + "test_a_message_is_acknowledged_once_its_start_is_stored",
    "run.cancel": SOCKET + "test_cancelling_a_run_stores_a_signal",
    "approval.reply": SOCKET
    + "test_a_pending_approval_is_sent_to_new_subscribers_and_the_first_decision_wins",
    "workflow.start": RESOURCES + "test_a_workflow_is_chosen_and_started",
    "input.reply": "scenarios/test_workflow_servers.py::test_a_requested_value_is_provided_over_every_api",
    "welcome": SOCKET + "test_welcome_precedes_replies_to_frames_sent_with_hello",
    "pong": ENVELOPE + "test_every_frame_accepts_the_conversation_of_its_envelope",
    "ack": SOCKET + "test_a_repeated_request_gets_the_same_reply",
    "subscribed": SOCKET + "test_a_pending_approval_is_sent_to_new_subscribers_and_the_first_decision_wins",
    "replay.done": SOCKET + "test_a_subscriber_receives_stored_events_and_then_new_ones",
    "resync_required": SOCKET + "test_an_unavailable_position_requires_a_resync",
    "error": SOCKET + "test_an_invalid_frame_gets_an_error_and_the_connection_stays_open",
    "server.draining": SOCKET + "test_draining_notifies_clients_and_closes",
    "run.queued": "scenarios/test_native_loop.py::test_a_second_message_waits_for_the_first_run",
    "run.started": CONTEXT + "test_a_run_is_streamed_as_the_frames_of_the_websocket",
    "iteration.started": CONTEXT + "test_a_run_is_streamed_as_the_frames_of_the_websocket",
    "message.delta": SOCKET + "test_deltas_reach_subscribers_of_their_detail",
    "reasoning.delta": INTERFACES + "test_a_client_selects_the_level_of_detail",
    "model.waiting": SOCKET + "test_subscribers_learn_that_the_model_request_is_repeated_after_a_pause",
    "message.completed": CONTEXT + "test_a_run_is_streamed_as_the_frames_of_the_websocket",
    "protocol.retry": "scenarios/test_json_calls.py::"
    "test_a_malformed_call_is_corrected_and_the_run_continues",
    "tool_call.requested": "scenarios/test_approvals.py::"
    "test_a_call_that_needs_approval_waits_for_the_decision",
    "approval.requested": "scenarios/test_approvals.py::"
    "test_a_call_that_needs_approval_waits_for_the_decision",
    "approval.resolved": "scenarios/test_approvals.py::"
    "test_a_call_that_needs_approval_waits_for_the_decision",
    "tool_call.started": INTERFACES + "test_a_client_selects_the_level_of_detail",
    "tool_call.output": INTERFACES + "test_a_client_selects_the_level_of_detail",
    "tool_call.completed": "scenarios/test_approvals.py::"
    "test_a_call_that_needs_approval_waits_for_the_decision",
    "workspace.changed": "workflows/test_create_project.py::"
    "test_create_project_writes_its_files_and_publishes_progress",
    "run.finished": CONTEXT + "test_a_run_is_streamed_as_the_frames_of_the_websocket",
    "workflow.progress": "workflows/test_create_project.py::"
    "test_create_project_writes_its_files_and_publishes_progress",
    "input.requested": "scenarios/test_workflow_servers.py::"
    "test_a_requested_value_is_provided_over_every_api",
    "input.resolved": "scenarios/test_workflow_servers.py::test_a_requested_value_is_provided_over_every_api",
    "workspace.restored": "runs/test_workspace_moves.py::test_a_loss_names_the_calls_after_the_snapshot",
    "conversation.updated": "runs/test_signals_in_takeover.py::"
    "test_a_rename_during_a_takeover_takes_effect_once",
}
"""Section 3: frames and events of the websocket."""

NOT_IN_THE_TABLES = {
    "approvals.subscribe",
    "approval.escalated",
    "approval.forgotten",
    "history.compacted",
    "history.cut",
    "model.notice",
    "reasoning.completed",
    "run.cancel_requested",
    "workflow.linked",
    "workflow.output",
}
"""Frames that were added since, which clients of the tables ignore."""
