module quorumlog.example/peers/rabbitmq

go 1.24.0

replace quorumlog.example/peers/load => ../load

require quorumlog.example/peers/load v0.0.0

require github.com/rabbitmq/amqp091-go v1.16.0
