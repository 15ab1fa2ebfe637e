package common

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
)

// Brokers are one case's own brokers, on one data directory, which it may kill and start again. compat/broker_pair.py
// runs them.
type Brokers struct {
	Bootstrap []string
	process   *exec.Cmd
	orders    io.WriteCloser
	answers   *bufio.Reader
}

// StartBrokers returns when all of them serve. The caller closes what it gets.
func StartBrokers(count int) (*Brokers, error) {
	process := exec.Command(os.Getenv("COMPAT_PAIR_PYTHON"), "-m", "compat.broker_pair", strconv.Itoa(count))
	process.Stderr = os.Stderr
	orders, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	said, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	brokers := &Brokers{process: process, orders: orders, answers: bufio.NewReader(said)}
	var ready struct {
		Bootstrap []string `json:"bootstrap"`
	}
	if err := brokers.hear(&ready); err != nil {
		return nil, errors.Join(err, brokers.Close())
	}
	brokers.Bootstrap = ready.Bootstrap
	return brokers, nil
}

// Kill kills a broker as if the power went, and returns when it is dead.
func (b *Brokers) Kill(number int) error {
	return b.order("kill", number)
}

// Start starts a killed broker again, at its old address, and returns when it serves.
func (b *Brokers) Start(number int) error {
	return b.order("start", number)
}

// Close ends all of them.
func (b *Brokers) Close() error {
	return errors.Join(b.orders.Close(), b.process.Wait())
}

func (b *Brokers) order(verb string, number int) error {
	if _, err := fmt.Fprintf(b.orders, "%s %d\n", verb, number); err != nil {
		return err
	}
	var done map[string]int
	return b.hear(&done)
}

func (b *Brokers) hear(answer any) error {
	line, err := b.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the brokers of this case: %w", err)
	}
	return json.Unmarshal(line, answer)
}
