module quorumlog.example/peers/embedded

go 1.24.0

replace quorumlog.example/peers/load => ../load

require quorumlog.example/peers/load v0.0.0
