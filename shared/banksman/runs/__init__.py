"""The protocol of runs, which agents and workflows share.

Pure decisions: `fold` (the state of a log), `steps` (the next step), `outcome` (results and the terminal
event), `call_attempt` (the next step of one call), `approval.policy`, `runners.workspaces`.

Procedures over `ports`: `claim` (with `arrivals`) → `loop` → `coordinator`, `owner`, `approval.requests`,
`handlers`, and `runners.calls` on the runner's side. The protocol test runs this code with crashes,
duplicates, reordering and delay at every await.

Adapters to the bus: `bus_ports`, `conversation_log`, `snapshots`, `runners.placement`, `runners.lease`.
"""
