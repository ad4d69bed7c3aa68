package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
)

// Frames as docs/formats.md has them: a header of 24 bytes, a message in MessagePack, and for an append
// the sizes and the entries. Messages are arrays: type, request id, and the fields of the type.
const (
	group          = "default"
	frameHeader    = 24
	entryHeader    = 48
	typeHello      = 32
	typeHelloBack  = 33
	typeAppend     = 34
	typeAppendBack = 35
)

type connection struct {
	net.Conn
	reader *bufio.Reader
	frame  []byte
}

// dial connects and greets.
func dial(address string) (*connection, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, reader: bufio.NewReader(conn)}
	// Protocol 1, role "client", and what only members have to say.
	hello := message(typeHello, 0, 11)
	hello = append(hello, 1)
	hello = append(text(hello, "client"), 0xA0, 0xA0, 0xA0, 0xA0, 0xA0, 0, 0xA0)
	if err := c.send(hello, nil, 0, 0); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	answer, err := c.read()
	// Type, request, protocol, status: a later release appends fields.
	if err == nil && (answer.kind != typeHelloBack || len(answer.fields) < 2 || answer.fields[1] != uint64(200)) {
		err = fmt.Errorf("refused: %v", answer.fields)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// append sends one request with `count` entries of this body.
func (c *connection) append(request uint64, body []byte, count int) error {
	control := message(typeAppend, request, 6)
	control = append(control, 0, 0, 0xA0, 0) // stream, number, previous connection, time-out
	return c.send(control, body, count, entryHeader+len(body))
}

func (c *connection) send(control, body []byte, count, entryBytes int) error {
	frame := append(c.frame[:0], make([]byte, frameHeader)...)
	frame = append(frame, control...)
	batch := len(frame)
	for range count {
		frame = binary.LittleEndian.AppendUint32(frame, uint32(entryBytes))
	}
	var header [entryHeader]byte
	binary.BigEndian.PutUint32(header[0:], 1) // an entry of data
	binary.BigEndian.PutUint32(header[4:], uint32(entryBytes))
	binary.BigEndian.PutUint32(header[44:], uint32(len(body)))
	for range count {
		frame = append(append(frame, header[:]...), body...)
	}
	copy(frame, "QLG\x01")
	if count > 0 {
		binary.LittleEndian.PutUint32(frame[8:], crc32.ChecksumIEEE(frame[batch:]))
	}
	binary.LittleEndian.PutUint32(frame[12:], uint32(len(frame)))
	binary.LittleEndian.PutUint32(frame[16:], uint32(len(control)))
	binary.LittleEndian.PutUint32(frame[20:], uint32(count))
	binary.LittleEndian.PutUint32(frame[4:], crc32.ChecksumIEEE(frame[8:batch]))
	c.frame = frame
	_, err := c.Write(frame)
	return err
}

// receive reads the answer to an append: to which request.
func (c *connection) receive() (uint64, error) {
	answer, err := c.read()
	if err != nil {
		return 0, err
	}
	if answer.kind != typeAppendBack {
		return 0, fmt.Errorf("answer of type %d: %v", answer.kind, answer.fields)
	}
	return answer.request, nil
}

// An answer: `fields` are those behind type and request, without their names.
type answer struct {
	kind    uint64
	request uint64
	fields  []any
}

func (c *connection) read() (answer, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(c.reader, head[:]); err != nil {
		return answer{}, err
	}
	frame := make([]byte, binary.LittleEndian.Uint32(head[12:])-frameHeader)
	if _, err := io.ReadFull(c.reader, frame); err != nil {
		return answer{}, err
	}
	if crc32.Update(crc32.ChecksumIEEE(head[8:]), crc32.IEEETable, frame) != binary.LittleEndian.Uint32(head[4:]) {
		return answer{}, errors.New("the CRC of an answer does not match")
	}
	decoded, err := value(bytes.NewReader(frame))
	if err != nil {
		return answer{}, err
	}
	// [group, [type, request, ...]]
	if outer, ok := decoded.([]any); ok && len(outer) == 2 {
		if fields, ok := outer[1].([]any); ok && len(fields) >= 2 {
			kind, isKind := fields[0].(uint64)
			request, isRequest := fields[1].(uint64)
			if isKind && isRequest {
				return answer{kind, request, fields[2:]}, nil
			}
		}
	}
	return answer{}, fmt.Errorf("an answer without a type and a request: %v", decoded)
}

// value reads one value of MessagePack: nil, bool, uint64, int64, string (of bytes as well), []any. Maps and
// floats are in no answer.
func value(reader *bytes.Reader) (any, error) {
	kind, err := reader.ReadByte()
	if err != nil {
		return nil, err
	}
	switch {
	case kind < 0x80:
		return uint64(kind), nil
	case kind >= 0x90 && kind < 0xA0:
		return list(reader, uint64(kind&0x0F))
	case kind >= 0xA0 && kind < 0xC0:
		return words(reader, uint64(kind&0x1F))
	case kind == 0xC0:
		return nil, nil
	case kind == 0xC2 || kind == 0xC3:
		return kind == 0xC3, nil
	case kind >= 0xCC && kind <= 0xCF:
		return bigEndian(reader, 1<<(kind-0xCC))
	case kind >= 0xD0 && kind <= 0xD3:
		size := 1 << (kind - 0xD0)
		number, err := bigEndian(reader, size)
		shift := 64 - 8*size
		return int64(number<<shift) >> shift, err
	case kind >= 0xC4 && kind <= 0xC6 || kind >= 0xD9 && kind <= 0xDB:
		length, err := bigEndian(reader, 1<<((kind-0xC4)%21)) // 0xD9 is 0xC4 + 21: bytes and text alike
		if err != nil {
			return nil, err
		}
		return words(reader, length)
	case kind == 0xDC || kind == 0xDD:
		length, err := bigEndian(reader, 2<<(kind-0xDC))
		if err != nil {
			return nil, err
		}
		return list(reader, length)
	case kind >= 0xE0:
		return int64(int8(kind)), nil
	default:
		return nil, fmt.Errorf("MessagePack of kind %#x is not expected in an answer", kind)
	}
}

func list(reader *bytes.Reader, length uint64) ([]any, error) {
	values := []any{}
	for range length {
		each, err := value(reader)
		if err != nil {
			return nil, err
		}
		values = append(values, each)
	}
	return values, nil
}

func words(reader *bytes.Reader, length uint64) (string, error) {
	if length > uint64(reader.Len()) {
		return "", io.ErrUnexpectedEOF
	}
	text := make([]byte, length)
	_, err := io.ReadFull(reader, text)
	return string(text), err
}

func bigEndian(reader io.Reader, size int) (uint64, error) {
	var number [8]byte
	_, err := io.ReadFull(reader, number[8-size:])
	return binary.BigEndian.Uint64(number[:]), err
}

// message begins [group, [type, request, ...]] with so many fields in the inner array.
func message(kind byte, request uint64, fields byte) []byte {
	control := text([]byte{0x92}, group)
	control = append(control, 0x90|fields, kind, 0xCF)
	return binary.BigEndian.AppendUint64(control, request)
}

func text(control []byte, words string) []byte {
	return append(append(control, 0xA0|byte(len(words))), words...)
}
