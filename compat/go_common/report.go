package common

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// WaitLimit is how long a condition that a broker reaches soon is waited for.
const WaitLimit = 30 * time.Second

// Task is what the harness asks of a driver: compat/README.md has the protocol.
type Task struct {
	Bootstrap string
	Prefix    string
	EpochMs   int64
	Cases     []string
}

// Topic names a topic that belongs to this run of this client.
func (task Task) Topic(name string) string {
	return task.Prefix + "-" + name
}

// Case returns a note, or the reason why it failed.
type Case func() (string, error)

// Plain makes a case of a function that has nothing to note.
func Plain(run func() error) Case {
	return func() (string, error) { return "", run() }
}

// FromEnvironment reads what the harness asks for.
func FromEnvironment() (Task, error) {
	epochMs, err := strconv.ParseInt(os.Getenv("COMPAT_EPOCH_MS"), 10, 64)
	return Task{
		Bootstrap: os.Getenv("COMPAT_BOOTSTRAP"),
		Prefix:    os.Getenv("COMPAT_PREFIX"),
		EpochMs:   epochMs,
		Cases:     strings.Split(os.Getenv("COMPAT_CASES"), ","),
	}, err
}

type line struct {
	Case    string  `json:"case"`
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
	Note    string  `json:"note"`
}

// Run runs what the task names, in its order, and reports each case.
func Run(task Task, cases map[string]Case) {
	out := json.NewEncoder(os.Stdout)
	for _, name := range task.Cases {
		started := time.Now()
		note, err := attempt(name, cases[name])
		if err != nil {
			note = err.Error()
			fmt.Fprintf(os.Stderr, "%s: %s\n", name, note)
		}
		_ = out.Encode(line{Case: name, Passed: err == nil, Seconds: time.Since(started).Seconds(), Note: note})
	}
}

func attempt(name string, run Case) (note string, err error) {
	if run == nil {
		return "", fmt.Errorf("this driver has no case %q", name)
	}
	defer func() {
		if caught := recover(); caught != nil {
			err = fmt.Errorf("panic: %v", caught)
		}
	}()
	return run()
}

// WaitUntil asks again until the condition holds.
func WaitUntil(what string, condition func() (bool, error)) error {
	for deadline := time.Now().Add(WaitLimit); ; time.Sleep(50 * time.Millisecond) {
		if done, err := condition(); err != nil || done {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("still not so after %s: %s", WaitLimit, what)
		}
	}
}

// Equal fails unless both are the same.
func Equal[T comparable](got, wanted T, what string) error {
	if got != wanted {
		return fmt.Errorf("%s: got %v, wanted %v", what, got, wanted)
	}
	return nil
}
