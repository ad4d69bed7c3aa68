package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// DLedger speaks RocketMQ's remoting protocol: a frame is its length, the header's length, a header in
// JSON and a body in JSON. Written out here because 256 of its Java clients would bring a thousand
// threads with them, and measure those.
const (
	codeMetadata = 50000
	codeAppend   = 50001
	codeSuccess  = 200
)

type header struct {
	Code     int    `json:"code"`
	Flag     int    `json:"flag"`
	Language string `json:"language"`
	Opaque   uint32 `json:"opaque"`
	Version  int    `json:"version"`
	Encoding string `json:"serializeTypeCurrentRPC"`
}

type request struct {
	Group    string `json:"group"`
	RemoteID string `json:"remoteId"`
	Body     []byte `json:"body,omitempty"` // base64, as Java's side has it
}

type response struct {
	Code     int    `json:"code"`
	LeaderID string `json:"leaderId"`
}

type connection struct {
	net.Conn
	reader *bufio.Reader
}

func dial(address string) (*connection, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &connection{conn, bufio.NewReaderSize(conn, 64<<10)}, nil
}

// send writes a request whose body has been encoded before.
func (c *connection) send(code int, opaque uint32, body []byte) error {
	head, err := json.Marshal(header{code, 0, "JAVA", opaque, 399, "JSON"})
	if err != nil {
		return err
	}
	frame := make([]byte, 8, 8+len(head)+len(body))
	binary.BigEndian.PutUint32(frame, uint32(4+len(head)+len(body)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(head)))
	_, err = c.Write(append(append(frame, head...), body...))
	return err
}

// receive reads an answer: to which request, and what it says.
func (c *connection) receive() (uint32, response, error) {
	var lengths [8]byte
	if _, err := io.ReadFull(c.reader, lengths[:]); err != nil {
		return 0, response{}, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(lengths[:])-4)
	if _, err := io.ReadFull(c.reader, frame); err != nil {
		return 0, response{}, err
	}
	headLength := binary.BigEndian.Uint32(lengths[4:]) & 0xFFFFFF
	var head header
	if err := json.Unmarshal(frame[:headLength], &head); err != nil {
		return 0, response{}, err
	}
	var answer response
	if err := json.Unmarshal(frame[headLength:], &answer); err != nil {
		return 0, response{}, fmt.Errorf("code %d: %s", head.Code, frame)
	}
	return head.Opaque, answer, nil
}

func (c *connection) call(code int, body []byte) (response, error) {
	if err := c.send(code, 1, body); err != nil {
		return response{}, err
	}
	_, answer, err := c.receive()
	return answer, err
}
