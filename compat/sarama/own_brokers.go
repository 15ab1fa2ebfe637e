package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

// stretchRecords is how many records each partition gets before and after what hurts.
const stretchRecords = 5

// restart kills the only broker and starts it again: members go on where they were, and one that comes later resumes
// from what was committed.
func (d *driver) restart() (string, error) {
	return d.withOwnBrokers(1, func(own *driver, brokers *common.Brokers) (string, error) {
		return own.survive("restart", func(int32) error { return errors.Join(brokers.Kill(0), brokers.Start(0)) })
	})
}

// failover kills the coordinator, and the other broker has to take over.
func (d *driver) failover() (string, error) {
	return d.withOwnBrokers(2, func(own *driver, brokers *common.Brokers) (string, error) {
		return own.survive("failover", func(coordinator int32) error {
			return errors.Join(brokers.Kill(int(coordinator)-1), own.waitForBrokers(1))
		})
	})
}

func (d *driver) withOwnBrokers(count int, run func(*driver, *common.Brokers) (string, error)) (string, error) {
	brokers, err := common.StartBrokers(count)
	if err != nil {
		return "", err
	}
	own := &driver{task: d.task, version: d.version}
	own.task.Bootstrap = strings.Join(brokers.Bootstrap, ",")
	note, err := run(own, brokers)
	return note, errors.Join(err, brokers.Close())
}

// survive has two members read and commit before and after `hurt`, which is told the coordinator's node id.
func (d *driver) survive(name string, hurt func(coordinator int32) error) (string, error) {
	topic := d.task.Topic(name)
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return "", err
	}
	group := common.NewGroup()
	first, err := d.join(group, topic, "first", d.groupConfig("range"))
	if err != nil {
		return "", err
	}
	second, err := d.join(group, topic, "second", d.groupConfig("range"))
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
	_, generation, _ := first.session()
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
	_, later, _ := first.session()
	// What is read while there is no coordinator cannot be committed, and is read again by whoever has it next.
	note := fmt.Sprintf("generation %d, then %d; records come again after %.1f s, %d of them twice",
		generation, later, time.Since(began).Seconds(), group.Again(topic, stretchRecords, 2*stretchRecords))
	err = errors.Join(first.stop(), second.stop())
	first, second = nil, nil
	if err != nil {
		return "", err
	}
	third, err := d.join(group, topic, "third", d.groupConfig("range"))
	if err != nil {
		return "", err
	}
	defer stopAll(third)
	return note, errors.Join(
		d.sendAndSee(group, topic, 2),
		common.Equal(group.Again(topic, 0, stretchRecords), 0, "committed records that were read again"),
		common.Equal(group.Again(topic, 2*stretchRecords, 3*stretchRecords), 0, "later records that were read again"),
	)
}

// sendAndSee sends one more stretch of records and waits until all so far is read and committed.
func (d *driver) sendAndSee(group *common.Group, topic string, stretch int64) error {
	if err := d.send(topic, d.records(groupPartitions, 0, stretchRecords*groupPartitions), d.config()); err != nil {
		return err
	}
	ends := slices.Repeat([]int64{stretchRecords * (stretch + 1)}, groupPartitions)
	if err := group.WaitUntilRead(topic, ends); err != nil {
		return err
	}
	var last error
	err := common.WaitUntil("all is committed", func() (bool, error) {
		last = nil
		for partition, end := range ends {
			last = errors.Join(last, d.committed(topic, topic, int32(partition), end))
		}
		return last == nil, nil
	})
	return errors.Join(err, last, group.Wrong())
}

// waitForBrokers waits until so many are left in the metadata. Sarama's producer does not: however often it may try
// again, it now and then gives up the records of a partition whose leader it cannot dial.
func (d *driver) waitForBrokers(count int) error {
	return common.WaitUntil("the dead broker is gone", func() (bool, error) {
		found := 0
		err := d.withAdmin(func(admin sarama.ClusterAdmin) error {
			brokers, _, err := admin.DescribeCluster()
			found = len(brokers)
			return err
		})
		return err == nil && found == count, nil
	})
}

func (d *driver) coordinator(groupID string) (nodeID int32, err error) {
	err = d.withAdmin(func(admin sarama.ClusterAdmin) error {
		found, err := admin.Coordinator(groupID)
		if err == nil {
			nodeID = found.ID()
		}
		return err
	})
	return nodeID, err
}
