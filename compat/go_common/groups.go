package common

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// GroupRecord is one record's place in the log.
type GroupRecord struct {
	Topic     string
	Partition int32
	Offset    int64
}

type groupPartition struct {
	topic     string
	partition int32
}

// Group watches all members of one consumer group: who owns what, and what was read how often.
//
// What must stay true of every group: no partition has two owners at once, and nobody reads what it does not own.
type Group struct {
	mutex  sync.Mutex
	owners map[groupPartition]string
	read   map[GroupRecord]int
	given  map[string]int
	wrong  []error
}

// NewGroup returns a group without members.
func NewGroup() *Group {
	return &Group{
		owners: map[groupPartition]string{}, read: map[GroupRecord]int{}, given: map[string]int{},
	}
}

// Take is called by a member that was given partitions, before it reads from them.
func (g *Group) Take(member, topic string, partitions ...int32) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for _, partition := range partitions {
		place := groupPartition{topic, partition}
		if owner, owned := g.owners[place]; owned {
			g.wrong = append(g.wrong, fmt.Errorf("%s-%d is given to %s, and %s has it", topic, partition, member, owner))
		}
		g.owners[place] = member
	}
}

// Give is called by a member that has to let partitions go, when it has done what it wanted to do with them.
func (g *Group) Give(member, topic string, partitions ...int32) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for _, partition := range partitions {
		place := groupPartition{topic, partition}
		if owner := g.owners[place]; owner != member {
			g.wrong = append(g.wrong, fmt.Errorf("%s lets go %s-%d, which %q has", member, topic, partition, owner))
			continue
		}
		delete(g.owners, place)
		g.given[member]++
	}
}

// GiveAll is called for a member that is gone.
func (g *Group) GiveAll(member string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for place, owner := range g.owners {
		if owner == member {
			delete(g.owners, place)
		}
	}
}

// Read is called by a member for each record that it gets.
func (g *Group) Read(member string, record GroupRecord) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if owner := g.owners[groupPartition{record.Topic, record.Partition}]; owner != member {
		g.wrong = append(g.wrong, fmt.Errorf("%s reads %v, which %q has", member, record, owner))
	}
	g.read[record]++
}

// Fail notes what a member must not hear.
func (g *Group) Fail(err error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.wrong = append(g.wrong, err)
}

// Owned returns a topic's partitions that a member has, in order.
func (g *Group) Owned(member, topic string) []int32 {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	var found []int32
	for place, owner := range g.owners {
		if owner == member && place.topic == topic {
			found = append(found, place.partition)
		}
	}
	slices.Sort(found)
	return found
}

// Given returns how many partitions a member has let go, one that came and went twice counted twice.
func (g *Group) Given(member string) int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.given[member]
}

// WaitForShares waits until each of the members has that many partitions of the topic.
func (g *Group) WaitForShares(topic string, shares map[string]int) error {
	return WaitUntil(fmt.Sprint("the shares of ", topic, " are ", shares), func() (bool, error) {
		for member, share := range shares {
			if len(g.Owned(member, topic)) != share {
				return false, g.Wrong()
			}
		}
		return true, g.Wrong()
	})
}

// WaitUntilRead waits until all records below the ends of a topic's partitions were read.
func (g *Group) WaitUntilRead(topic string, ends []int64) error {
	return WaitUntil(fmt.Sprint("all is read of ", topic, " up to ", ends), func() (bool, error) {
		return len(g.missing(topic, ends)) == 0, g.Wrong()
	})
}

// ReadOnce fails unless each record below the ends of a topic's partitions was read once.
func (g *Group) ReadOnce(topic string, ends []int64) error {
	if missing := g.missing(topic, ends); len(missing) > 0 {
		return fmt.Errorf("%d records were not read, the first is %v", len(missing), missing[0])
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for record, times := range g.read {
		if record.Topic == topic && times > 1 {
			return fmt.Errorf("%v was read %d times", record, times)
		}
	}
	return nil
}

// Again returns how many records of a topic from a start to an end (exclusive), in any partition, were read repeatedly.
func (g *Group) Again(topic string, start, end int64) int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	count := 0
	for record, times := range g.read {
		if record.Topic == topic && record.Offset >= start && record.Offset < end && times > 1 {
			count++
		}
	}
	return count
}

// Wrong returns all that was wrong so far.
func (g *Group) Wrong() error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return errors.Join(g.wrong...)
}

func (g *Group) missing(topic string, ends []int64) []GroupRecord {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	var found []GroupRecord
	for partition, end := range ends {
		for offset := range end {
			record := GroupRecord{topic, int32(partition), offset}
			if g.read[record] == 0 {
				found = append(found, record)
			}
		}
	}
	return found
}
