module quorumlog.example/peers/load

go 1.24.0
