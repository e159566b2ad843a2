"""Lines of the interfaces without an entry in the published documents, each with its test."""

from __future__ import annotations

RESOURCES = "gateway/http/test_resources.py::"
CONTEXT = "gateway/http/test_context.py::"
SCHEDULES = "gateway/http/test_schedules.py::"
WEBHOOKS = "gateway/webhooks/test_webhooks.py::"
PASSTHROUGH = "gateway/passthrough/test_passthrough.py::"
STREAMS = "gateway/passthrough/test_streams.py::"
REQUESTS = "gateway/passthrough/test_requests.py::"
NORMALISER = "gateway/passthrough/test_normaliser.py::"
SOCKET = "gateway/websocket/test_websocket.py::"
ENVELOPE = "gateway/websocket/test_envelope.py::"
NATS = "gateway/nats_api/test_nats_api.py::"
MCP = "gateway/mcp/test_mcp_server.py::"
CONTRACT = "gateway/passthrough/test_wire_contract.py::"
INTERFACES = "scenarios/test_interfaces.py::"

OTHERS = {
    "close 1007": SOCKET + "test_invalid_utf8_closes_the_connection",
    "close 1009": SOCKET + "test_an_oversized_frame_closes_the_connection",
    "close 1011": "gateway/websocket/test_fuzzed_frames.py::test_no_frame_is_an_internal_error",
    "close 1012": SOCKET + "test_draining_notifies_clients_and_closes",
    "close 4400": SOCKET + "test_a_binary_frame_closes_the_connection",
    "close 4401": SOCKET + "test_a_wrong_token_closes_after_hello_and_is_401_at_the_upgrade",
    "close 4403": "gateway/websocket/test_refresh.py::"
    "test_a_wrong_token_and_one_of_another_tenant_close_the_connection",
    "close 4408": SOCKET + "test_a_connection_without_hello_is_closed",
    "close 4409": SOCKET + "test_a_second_hello_closes_the_connection",
    "close 4426": SOCKET + "test_only_unknown_subprotocols_are_refused",
    "close 4429": SOCKET + "test_a_client_above_its_rate_is_warned_and_then_closed",
    "close 4508": SOCKET + "test_a_client_that_does_not_read_is_closed_and_resumes",
    "GET /": CONTEXT + "test_readiness_and_page_are_served",
    "HEAD /": RESOURCES + "test_the_root_responds_to_clients_that_look_for_a_server",
    "GET /v1/schemas/ws.json": "gateway/websocket/test_schemas.py::"
    "test_every_frame_of_a_run_matches_the_published_schemas",
    "/docs, /asyncapi": RESOURCES + "test_api_documents_load_nothing_from_another_host",
    "/healthz, /readyz, /metrics": "scenarios/test_structure.py::"
    "test_each_service_is_a_process_that_reports_readiness",
    "POST /mcp: rights": MCP + "test_a_key_is_offered_the_tools_of_its_rights",
    "POST /mcp: start and follow runs": MCP + "test_a_run_is_started_followed_and_read",
    "POST /mcp: decide approvals": MCP + "test_a_run_that_needs_a_decision_returns_at_once_and_is_decided",
    "POST /mcp: list and run workflows": MCP + "test_a_workflow_is_listed_and_started",
    "MCP servers as tools": "scenarios/test_mcp_servers.py::"
    "test_an_approved_tool_is_called_in_the_workspace_after_its_approval_and_no_secret_is_seen",
    "OIDC": "gateway/oidc/test_oidc.py::"
    "test_a_token_grants_the_rights_of_its_claims_on_http_and_on_the_websocket",
    "A2A task methods": "gateway/a2a/test_push.py::"
    "test_a_receiver_gets_the_states_of_its_task_signed_and_with_the_clients_headers",
    "auth of passthrough; error object": PASSTHROUGH + "test_a_wrong_key_gets_the_error_format_of_each_api",
    "status 404 model_not_found": REQUESTS + "test_a_model_that_no_upstream_serves_is_not_found",
    "status 404 unknown_url; base URL": PASSTHROUGH + "test_an_unknown_path_gets_a_hint_with_the_right_path",
    "status 502": PASSTHROUGH + "test_an_unreachable_upstream_is_a_502",
    "statuses of the upstream": CONTRACT
    + "test_a_refusal_of_the_upstream_keeps_its_status_its_bytes_and_its_time_to_wait",
    "status 429, retry-after": CONTRACT + "test_a_client_above_its_rate_gets_429_with_the_seconds_to_wait",
    "response headers": CONTRACT + "test_a_stream_has_an_id_and_the_headers_that_keep_proxies_from_buffering",
    "SSE framing": STREAMS + "test_each_event_is_forwarded_when_it_is_complete",
    "chunks, usage, tool deltas": NORMALISER + "test_the_python_sdk_reads_every_deviation",
    "mid-stream fault": STREAMS + "test_a_stream_that_the_upstream_breaks_off_ends_with_an_error",
    "normaliser changes nothing else": NORMALISER + "test_a_stream_without_deviations_keeps_its_bytes",
    "cancellation": PASSTHROUGH + "test_a_client_that_disconnects_cancels_the_upstream_request",
    "system prompt": PASSTHROUGH + "test_the_bytes_of_a_body_reach_the_upstream_unchanged",
    "traceparent": "scenarios/test_traces.py::"
    "test_a_trace_reaches_models_calls_logs_and_the_record_of_its_run",
    "api.{t}.conversation.create": NATS + "test_a_nats_client_starts_a_run_and_reads_its_events",
    "api.{t}.chat.send.{c}": NATS + "test_a_nats_client_starts_a_run_and_reads_its_events",
    "api.{t}.run.cancel.{c}": INTERFACES + "test_a_service_cancels_runs_and_starts_workflows_over_nats",
    "api.{t}.approval.reply.{a}": NATS + "test_an_approval_is_decided_over_nats",
    "api.{t}.workflow.start.{name}": INTERFACES
    + "test_a_service_cancels_runs_and_starts_workflows_over_nats",
    "api.{t}.replay.{c}": NATS + "test_a_followed_conversation_ends_with_an_empty_message",
    "api.{t}.error": NATS + "test_a_failed_publish_is_reported_and_dead_lettered",
    "live.{t}.{c}, delta.{t}.{c}": NATS + "test_live_and_replayed_frames_have_the_shape_of_the_websocket",
    "approval.request.{t}.{a}": NATS + "test_an_approval_is_decided_over_nats",
    "tool.register": "scenarios/test_tool_registry.py::"
    "test_a_tool_registered_later_is_offered_in_the_next_run",
    "workflow.register": "scenarios/test_workflow_servers.py::"
    "test_the_example_of_a_workflow_is_registered_and_completes",
    "?wait_s=": CONTEXT + "test_waiting_for_a_run_returns_its_outcome",
    "SSE of a run": CONTEXT + "test_a_run_is_streamed_as_the_frames_of_the_websocket",
    "Idempotency-Key": INTERFACES + "test_a_repeated_request_runs_once_and_another_body_is_a_conflict",
    "a disconnected client cancels its run": CONTEXT
    + "test_disconnecting_from_a_stream_cancels_the_run_that_it_started",
    "a disconnected websocket cancels nothing": SOCKET + "test_a_client_resumes_after_the_last_event_it_has",
    "AG-UI interrupts and their payload": "gateway/agui/test_agui.py::"
    "test_an_approval_is_an_interrupt_for_each_call_and_its_resolution_resumes_the_run",
    "no endpoint calls a tool": "scenarios/test_json_calls.py::test_there_is_no_endpoint_for_tools",
    "status 400 unsupported_endpoint_for_model": CONTRACT + "test_a_model_without_the_api_of_the_path_is_400",
    "status 400": PASSTHROUGH + "test_a_body_without_a_model_is_a_bad_request",
    "status 413; bodies of 10 MiB": CONTRACT
    + "test_a_body_above_ten_mebibytes_is_413_and_a_smaller_one_arrives",
    "status 504": CONTRACT + "test_an_upstream_that_does_not_respond_is_504",
    "status 503, retry-after": "gateway/service/test_log_room.py::test_tenant_at_its_bound_gets_503_and_busy",
    "keep-alive": CONTRACT + "test_a_comment_every_15_seconds_keeps_a_stream_alive_before_its_first_event",
    "keep-alive between events": CONTRACT + "test_comments_come_between_events_and_never_within_one",
    "content of every form; unknown fields": CONTRACT
    + "test_content_of_every_form_and_unknown_fields_pass_in_both_directions",
    "request headers by allow-list": REQUESTS
    + "test_query_and_listed_headers_reach_the_upstream_and_no_other_header",
    "non-stream reply": "scenarios/test_passthrough.py::test_a_complete_reply_equals_the_reply_of_the_vendor",
    "behaviour by path alone": "scenarios/test_passthrough.py::test_the_path_alone_decides_the_mode",
    "error that is a bare string": NORMALISER + "test_a_refusal_with_a_bare_string_becomes_an_error_object",
    "subprotocol": SOCKET + "test_only_unknown_subprotocols_are_refused",
    "ticket": RESOURCES + "test_a_ticket_opens_one_websocket",
    "origin 403": SOCKET + "test_a_page_of_another_origin_is_refused_before_the_upgrade",
    "conversation_id of the envelope": ENVELOPE
    + "test_a_frame_whose_envelope_names_another_conversation_is_refused",
    "id is the idempotency key": SOCKET + "test_a_repeated_request_gets_the_same_reply",
    "prev_seq at a lower detail": SOCKET + "test_final_detail_omits_events_and_names_the_previous_sequence",
    "resume": SOCKET + "test_a_client_resumes_after_the_last_event_it_has",
    "mode: steer": INTERFACES + "test_steering_reaches_the_open_run_before_its_next_model_request",
    "steer supersedes an approval": INTERFACES + "test_a_steer_supersedes_an_approval_request",
    "decisions cover every item": "scenarios/test_edges.py::"
    "test_an_incomplete_decision_leaves_the_approval_request_open",
    "a rejected call ends the run": "scenarios/test_approvals.py::"
    "test_a_rejection_ends_the_run_without_executing_later_calls",
    "on_reject: feedback": "scenarios/test_assistants.py::"
    "test_with_feedback_a_rejection_goes_to_the_model_and_the_approved_call_runs",
    "remember": "scenarios/test_assistants.py::test_a_decision_can_be_remembered",
    "edited arguments": SOCKET + "test_edited_arguments_are_checked_against_the_tools_schema",
    "fields of frames": "project/test_interface_fields.py::"
    "test_a_client_frame_accepts_every_field_of_its_line",
    "fields of control frames": "project/test_interface_fields.py::"
    "test_a_control_frame_has_every_field_of_its_line",
    "fields and detail of events": "project/test_interface_fields.py::"
    "test_an_event_has_the_level_of_detail_and_every_field_of_its_line",
    "larger tool output": "scenarios/test_load.py::test_a_large_output_is_stored_whole_and_shown_in_part",
    "merged deltas": "gateway/service/test_outbox.py::test_waiting_deltas_are_merged_without_a_gap",
    "permessage-deflate off": SOCKET + "test_frames_are_not_compressed_even_if_a_client_offers_it",
    "headers of NATS requests": "gateway/nats_api/test_nats_resources.py::"
    "test_requests_without_the_sdk_are_checked_in_the_same_way",
    "missed: run_once or skip": SCHEDULES + "test_missed_runs_run_once_or_not_at_all_as_chosen",
    "cron with time zone": "gateway/service/test_schedule_times.py::"
    "test_times_of_day_are_local_and_each_is_due_once",
    "banksman keys": "gateway/identity/test_keys_file.py::"
    "test_a_colleagues_key_opens_the_gateway_at_once_and_closes_it_for_everyone_else",
    "webhook input.requested": WEBHOOKS + "test_a_request_for_a_value_arrives_with_the_schema_of_its_form",
    "webhook replay": WEBHOOKS
    + "test_a_message_that_is_given_up_is_a_dead_letter_and_its_replay_is_delivered",
    "a changed schema needs a new approval": "scenarios/test_mcp_servers.py::"
    "test_a_change_of_a_server_withdraws_its_tools_until_they_are_approved_again",
    "OIDC sign-in of the page": "gateway/oidc/test_oidc.py::test_a_user_signs_in_on_the_page",
    "PKCE": "gateway/oidc/test_oidc.py::test_a_code_is_exchanged_only_with_its_verifier",
}
"""Lines without an entry in the documents: behaviour of passthrough, close codes, subjects (2, 3, 6, 8)."""
