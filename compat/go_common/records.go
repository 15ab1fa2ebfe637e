// Package common has what both Go drivers share: the records that all drivers write, and the lines that they report.
package common

import (
	"bytes"
	"fmt"
)

const (
	// RecordCount is the size of the common set of records.
	RecordCount = 60
	// LargeBytes is a value that fits under the default max.message.bytes, but only just.
	LargeBytes = 1_000_000
)

// Header may occur more than once in a record. A nil value is Kafka's null.
type Header struct {
	Key   string
	Value []byte
}

// Record is one record as a client sees it. Nil is Kafka's null, which differs from empty bytes.
type Record struct {
	Partition   int32
	Key         []byte
	Value       []byte
	Headers     []Header
	TimestampMs int64
}

// Range returns records start to end (exclusive) of the common set, dealt out to the partitions in turn.
func Range(partitions int32, start, end int, epochMs int64) []Record {
	var records []Record
	for number := start; number < end; number++ {
		one := record(number, epochMs)
		one.Partition = int32(number-start) % partitions
		records = append(records, one)
	}
	return records
}

func record(number int, epochMs int64) Record {
	one := Record{TimestampMs: epochMs + int64(number)*1000}
	switch number % 5 {
	case 0:
	case 1:
		one.Key = []byte{}
	default:
		one.Key = fmt.Appendf(nil, "key-%d", number)
	}
	switch number % 7 {
	case 0:
	case 1:
		one.Value = []byte{}
	default:
		one.Value = pattern(number, number*37)
	}
	switch number % 3 {
	case 1:
		one.Headers = []Header{{"trace", []byte("a")}, {"trace", []byte("b")}}
	case 2:
		one.Headers = []Header{{"empty", []byte{}}, {"null", nil}, {"bytes", []byte{0, 0xff, 0x80}}}
	}
	return one
}

func pattern(seed, sizeBytes int) []byte {
	out := make([]byte, sizeBytes)
	for at := range out {
		out[at] = byte(seed*31 + at*7)
	}
	return out
}

// Noise returns bytes that do not compress.
func Noise(seed uint32, sizeBytes int) []byte {
	out := make([]byte, sizeBytes)
	state := seed
	for at := range out {
		state = (state*1103515245 + 12345) & 0x7fffffff
		out[at] = byte(state >> 16)
	}
	return out
}

// Large returns a few records of LargeBytes.
func Large(epochMs int64) []Record {
	var records []Record
	for seed := range uint32(4) {
		records = append(records, Record{Value: Noise(seed, LargeBytes), TimestampMs: epochMs})
	}
	return records
}

// Part returns what belongs to one partition, in order.
func Part(records []Record, partition int32) []Record {
	var found []Record
	for _, one := range records {
		if one.Partition == partition {
			found = append(found, one)
		}
	}
	return found
}

// Same compares every byte of one partition's records.
func Same(got, wanted []Record) error {
	if len(got) != len(wanted) {
		return fmt.Errorf("%d records, not %d", len(got), len(wanted))
	}
	for at := range wanted {
		if difference := differ(got[at], wanted[at]); difference != "" {
			return fmt.Errorf("record %d of partition %d differs: %s", at, wanted[at].Partition, difference)
		}
	}
	return nil
}

func differ(got, wanted Record) string {
	if !equal(got.Key, wanted.Key) {
		return fmt.Sprintf("key %q, not %q", got.Key, wanted.Key)
	}
	if !equal(got.Value, wanted.Value) {
		return fmt.Sprintf("value of %d bytes (null: %v), not %d", len(got.Value), got.Value == nil, len(wanted.Value))
	}
	if got.TimestampMs != wanted.TimestampMs {
		return fmt.Sprintf("timestamp %d, not %d", got.TimestampMs, wanted.TimestampMs)
	}
	if len(got.Headers) != len(wanted.Headers) {
		return fmt.Sprintf("%d headers, not %d", len(got.Headers), len(wanted.Headers))
	}
	for at, header := range wanted.Headers {
		if got.Headers[at].Key != header.Key || !equal(got.Headers[at].Value, header.Value) {
			return fmt.Sprintf("header %v, not %v", got.Headers[at], header)
		}
	}
	return ""
}

func equal(got, wanted []byte) bool {
	return (got == nil) == (wanted == nil) && bytes.Equal(got, wanted)
}
