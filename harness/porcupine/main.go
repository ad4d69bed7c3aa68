// Whether Porcupine takes histories of registers to be linearizable.
//
//	porcupine FILE      one history a line, as compare.py writes them
//
// It prints a line for each: ok, illegal or unknown.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const timeout = 20 * time.Second

type operation struct {
	Client  int     `json:"client"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return"`
	Kind    string  `json:"kind"`
	From    *string `json:"from"`
	Value   *string `json:"value"`
	Holds   bool    `json:"holds"`
	Unknown bool    `json:"unknown"`
}

const missing = "\x00missing"

func text(value *string) string {
	if value == nil {
		return missing
	}
	return *value
}

var register = porcupine.Model{
	Init: func() any { return missing },
	Step: func(state, input, output any) (bool, any) {
		held, asked := state.(string), input.(operation)
		switch asked.Kind {
		case "read":
			return asked.Unknown || text(asked.Value) == held, held
		case "write":
			return true, text(asked.Value)
		case "delete":
			return asked.Unknown || asked.Holds == (held != missing), missing
		case "cas":
			holds := held == text(asked.From)
			if !asked.Unknown && holds != asked.Holds {
				return false, held
			}
			if holds {
				return true, text(asked.Value)
			}
			return true, held
		}
		panic("an operation of the unknown kind " + asked.Kind)
	},
}

func check(line []byte) porcupine.CheckResult {
	var history []operation
	if err := json.Unmarshal(line, &history); err != nil {
		panic(err)
	}
	operations := make([]porcupine.Operation, 0, len(history))
	for _, each := range history {
		operations = append(operations, porcupine.Operation{
			ClientId: each.Client, Input: each, Call: each.Call, Output: nil, Return: each.Return,
		})
	}
	return porcupine.CheckOperationsTimeout(register, operations, timeout)
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 || err != nil {
			return
		}
		switch check(line) {
		case porcupine.Ok:
			fmt.Println("ok")
		case porcupine.Illegal:
			fmt.Println("illegal")
		default:
			fmt.Println("unknown")
		}
	}
}
