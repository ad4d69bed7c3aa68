"""The engine of every client, without its sockets: routing, outcomes, and failure detection.
`RpcProtocol` is sans-IO and takes the time as input; `net/io_loop.py` drives it with asyncio.

A product subclasses `Product`: its name and the group of its frames, its decoder, its `probe` (asks for
the leader) and the view in the answer (`view_of`); other methods it may override are documented there.
The caller makes a `Call` and submits it; its `response` or `error` is set once it is done.

Target        LEADER, ANY_MEMBER, LEADER_OR_ANY, a member by id, or one address. The leader is learned
              from probes, the hint in a refusal (`leader_id`, `leader_address`) and notifications
              (`notice_of`). While no leader is known, servers are asked, more each time
Refused       a refusal is certain: nothing was done. One that is `retriable` is tried again inside the
              deadline, after a back-off. One with `is_elsewhere` means that another member may serve the
              call (NotLeader, LeaderNotReady, and errors of a product): then a LEADER call looks for
              the leader, and an ANY_MEMBER call goes to another member
No answer     the connection has ended, or the answer is OutcomeUnknown. A call that `changes` nothing
              is sent again, else the outcome is unknown (OutcomeUnknown), and it is never sent again,
              unless it `is_numbered`: once a copy of a numbered call was left without an answer, or
              answered with OutcomeUnknown, no refusal is certain, and each becomes OutcomeUnknown. A
              deadline that passes while the call is in flight has the same effect
Numbered      by the product, in its messages: a server executes the call once, however often it is
              sent. An `Order` (set in `Product.submitted`) keeps and sends calls in sequence
Silence       a server that owes an answer for `probe_after_ms`, beyond the `wait_ms` of the call, is
              probed, and the others are asked for the leader. LEADER calls leave it once another one
              leads, ANY_MEMBER calls after `move_read_after_ms`; else the deadline decides, as silence
              proves nothing
Turned away   a greeting that every known server refuses for good (WrongPort, UnknownGroup) ends all
              waiting calls, as does ClusterChanged from every reachable server; a single such
              server is skipped
Watches       calls with `on_message`, which gets messages with their id. A watch has begun with the
              first message, and has no deadline from then on. If its connection ends, or its server
              is silent, it is reopened with the current `message`, which the caller keeps up to
              date. It ends by a refusal that is not retriable, and by `cancel` (`Product.cancel`)

Read in this order: `timings`, `calls` (a call, an order, a connection), `view` (the leader), `product`,
`link_table`, `router` (routing of calls), `tracker` (outcomes of calls), `protocol` (connections).
"""
