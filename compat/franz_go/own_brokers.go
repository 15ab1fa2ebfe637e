package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/compat/common"
)

// stretchRecords is how many records each partition gets before and after what hurts.
const stretchRecords = 5

// restart kills the only broker and starts it again: members go on where they were, and one that comes later resumes
// from what was committed.
func (d *driver) restart(protocol string) (string, error) {
	return d.withOwnBrokers(1, func(own *driver, brokers *common.Brokers) (string, error) {
		return own.survive("restart", protocol, func(int32) error {
			return errors.Join(brokers.Kill(0), brokers.Start(0))
		})
	})
}

// failover kills the coordinator, and the other broker has to take over.
func (d *driver) failover(protocol string) (string, error) {
	return d.withOwnBrokers(2, func(own *driver, brokers *common.Brokers) (string, error) {
		return own.survive("failover", protocol, func(coordinator int32) error {
			return brokers.Kill(int(coordinator) - 1)
		})
	})
}

func (d *driver) withOwnBrokers(count int, run func(*driver, *common.Brokers) (string, error)) (string, error) {
	brokers, err := common.StartBrokers(count)
	if err != nil {
		return "", err
	}
	task := d.task
	task.Bootstrap = strings.Join(brokers.Bootstrap, ",")
	own, err := newDriver(task)
	if err != nil {
		return "", errors.Join(err, brokers.Close())
	}
	note, err := run(own, brokers)
	own.plain.Close()
	return note, errors.Join(err, brokers.Close())
}

// survive has two members read and commit before and after `hurt`, which is told the coordinator's node id.
func (d *driver) survive(name, protocol string, hurt func(coordinator int32) error) (string, error) {
	topic := d.task.Topic(name + "-" + protocol)
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return "", err
	}
	group := common.NewGroup()
	settings := append(slices.Clone(protocols[protocol]), kgo.ConsumeTopics(topic))
	first, err := d.join(group, topic, "first", settings...)
	if err != nil {
		return "", err
	}
	second, err := d.join(group, topic, "second", settings...)
	if err != nil {
		return "", err
	}
	defer func() { stopAll(first, second) }()
	if err := group.WaitForShares(topic, map[string]int{"first": 3, "second": 3}); err != nil {
		return "", err
	}
	if err := d.sendAndSee(group, topic, 0); err != nil {
		return "", err
	}
	given := group.Given("first") + group.Given("second")
	_, generation := first.client.GroupMetadata()
	coordinator, err := d.coordinator(topic)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := hurt(coordinator); err != nil {
		return "", err
	}
	if err := d.sendAndSee(group, topic, 1); err != nil {
		return "", err
	}
	took := time.Since(began)
	_, later := first.client.GroupMetadata()
	// What is read while there is no coordinator cannot be committed, and is read again by whoever has it next.
	again := group.Again(topic, stretchRecords, 2*stretchRecords)
	note := fmt.Sprintf("generation %d, then %d; records come again after %.1f s, %d of them twice",
		generation, later, took.Seconds(), again)
	// A classic member of franz-go may give its partitions up when it cannot dial the coordinator, and join anew.
	if protocol == "consumer" {
		err = errors.Join(
			common.Equal(group.Given("first")+group.Given("second"), given, "partitions that members let go"),
			common.Equal(later, generation, "generation"), common.Equal(again, 0, "records that were read again"),
		)
		if err != nil {
			return "", err
		}
	}
	first.stop()
	second.stop()
	first, second = nil, nil
	third, err := d.join(group, topic, "third", settings...)
	if err != nil {
		return "", err
	}
	defer third.stop()
	return note, errors.Join(
		d.sendAndSee(group, topic, 2),
		common.Equal(group.Again(topic, 0, stretchRecords), 0, "committed records that were read again"),
		common.Equal(group.Again(topic, 2*stretchRecords, 3*stretchRecords), 0, "later records that were read again"),
	)
}

// sendAndSee sends one more stretch of records and waits until all so far is read and committed.
func (d *driver) sendAndSee(group *common.Group, topic string, stretch int64) error {
	if err := d.send(topic, common.Range(groupPartitions, 0, stretchRecords*groupPartitions, d.task.EpochMs)); err != nil {
		return err
	}
	ends := slices.Repeat([]int64{stretchRecords * (stretch + 1)}, groupPartitions)
	if err := group.WaitUntilRead(topic, ends); err != nil {
		return err
	}
	var last error
	err := common.WaitUntil("all is committed", func() (bool, error) {
		// A client of its own: one that only asks for offsets goes on dialling a dead coordinator.
		fresh, err := newDriver(d.task)
		if err != nil {
			return false, err
		}
		defer fresh.plain.Close()
		last = nil
		for partition, end := range ends {
			last = errors.Join(last, fresh.committed(topic, topic, int32(partition), end))
		}
		return last == nil, nil
	})
	return errors.Join(err, last, group.Wrong())
}

func (d *driver) coordinator(groupID string) (int32, error) {
	ctx, cancel := limited()
	defer cancel()
	found := d.admin.FindGroupCoordinators(ctx, groupID)
	return found[groupID].NodeID, found.Error()
}
