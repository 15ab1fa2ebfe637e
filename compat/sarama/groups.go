package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

const groupPartitions = 6

// classicGroup has one member join, read, commit and leave. The next one goes on from what was committed.
func (d *driver) classicGroup() error {
	topic := d.task.Topic("group")
	if err := d.create(topic, 3, nil); err != nil {
		return err
	}
	wanted := d.records(3, 0, common.RecordCount)
	for at := range 2 {
		records := wanted[at*len(wanted)/2 : (at+1)*len(wanted)/2]
		if err := d.send(topic, records, d.config()); err != nil {
			return err
		}
		if err := d.readInGroup(topic, records, int64(at*len(records)/3)); err != nil {
			return fmt.Errorf("member %d: %w", at, err)
		}
		for partition := range int32(3) {
			if err := d.committed(topic, topic, partition, int64((at+1)*len(records)/3)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *driver) readInGroup(topic string, wanted []common.Record, start int64) error {
	group := common.NewGroup()
	one, err := d.join(group, topic, "member", d.groupConfig("range"))
	if err != nil {
		return err
	}
	err = common.WaitUntil("the member has read all", func() (bool, error) {
		one.mutex.Lock()
		defer one.mutex.Unlock()
		read := 0
		for _, part := range one.records {
			read += len(part)
		}
		return read >= len(wanted), group.Wrong()
	})
	if err = errors.Join(err, one.stop(), group.Wrong()); err != nil {
		return err
	}
	memberID, generation, claims := one.session()
	if memberID == "" || generation < 1 || !slices.Equal(claims, []int32{0, 1, 2}) {
		return fmt.Errorf("member %q of generation %d has %v", memberID, generation, claims)
	}
	for partition := range int32(3) {
		if err := common.Same(one.records[partition], common.Part(wanted, partition)); err != nil {
			return fmt.Errorf("from offset %d: %w", start, err)
		}
	}
	return nil
}

func (d *driver) committed(groupID, topic string, partition int32, wanted int64) error {
	return d.withAdmin(func(admin sarama.ClusterAdmin) error {
		offsets, err := admin.ListConsumerGroupOffsets(groupID, map[string][]int32{topic: {partition}})
		if err != nil {
			return err
		}
		found := offsets.GetBlock(topic, partition)
		if found == nil || found.Err != sarama.ErrNoError {
			return fmt.Errorf("no committed offset of %s-%d: %v", topic, partition, found)
		}
		return common.Equal(found.Offset, wanted, fmt.Sprintf("committed offset of %s-%d", topic, partition))
	})
}

// mixed has a member of the newest protocol join one of this driver's.
func (d *driver) mixed() (string, error) {
	return d.rebalance("mixed", "range", &driver{task: d.task, version: sarama.MaxVersion})
}

// rebalance has members come and go while records are written. The second member has another driver's version.
func (d *driver) rebalance(name, strategy string, other *driver) (string, error) {
	topic := d.task.Topic("rebalance-" + name)
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return "", err
	}
	group := common.NewGroup()
	writer, err := d.startTraffic(topic, groupPartitions)
	if err != nil {
		return "", err
	}
	defer writer.halt()
	first, err := d.join(group, topic, "first", d.groupConfig(strategy))
	if err != nil {
		return "", err
	}
	var second *member
	defer func() { stopAll(first, second) }()
	if err := group.WaitForShares(topic, map[string]int{"first": groupPartitions}); err != nil {
		return "", err
	}
	began := time.Now()
	if second, err = d.join(group, topic, "second", other.groupConfig(strategy)); err != nil {
		return "", err
	}
	if err := group.WaitForShares(topic, map[string]int{"first": 3, "second": 3}); err != nil {
		return "", err
	}
	joined, taken := time.Since(began), group.Given("first")
	began = time.Now()
	err = first.stop()
	first = nil
	if err = errors.Join(err, group.WaitForShares(topic, map[string]int{"second": groupPartitions})); err != nil {
		return "", err
	}
	note := fmt.Sprintf("second member's share after %.1f s, all of it after the first one's leave %.1f s",
		joined.Seconds(), time.Since(began).Seconds())
	// An eager strategy takes everything from everybody; the other takes only what the second member is to have.
	given := groupPartitions
	if strategy == "cooperative" {
		given = 3
	}
	return note, errors.Join(
		writer.finish(group, topic),
		common.Equal(taken, given, "partitions that the first member had to let go"),
	)
}

// static restarts a member that has an instance id: it has its partitions back, and nobody else notices.
func (d *driver) static() error {
	topic := d.task.Topic("static")
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return err
	}
	group := common.NewGroup()
	start := func(name string) (*member, error) {
		config := d.groupConfig("range")
		config.Consumer.Group.InstanceId = name
		return d.join(group, topic, name, config)
	}
	first, err := start("first")
	if err != nil {
		return err
	}
	second, err := start("second")
	if err != nil {
		return err
	}
	defer func() { stopAll(first, second) }()
	halves := map[string]int{"first": 3, "second": 3}
	if err := group.WaitForShares(topic, halves); err != nil {
		return err
	}
	before, given := group.Owned("second", topic), group.Given("first")
	_, generation, _ := first.session()
	if err := second.stop(); err != nil {
		return err
	}
	if second, err = start("second"); err != nil {
		return err
	}
	if err := group.WaitForShares(topic, halves); err != nil {
		return err
	}
	_, later, _ := first.session()
	if after := group.Owned("second", topic); !slices.Equal(before, after) {
		return fmt.Errorf("%v before the restart, %v after it", before, after)
	}
	err = errors.Join(
		common.Equal(group.Given("first"), given, "partitions that the other member let go"),
		common.Equal(later, generation, "generation"),
	)
	if err != nil {
		return err
	}
	err = second.stop()
	second = nil
	if err != nil {
		return err
	}
	err = d.withAdmin(func(admin sarama.ClusterAdmin) error {
		_, err := admin.RemoveMemberFromConsumerGroup(topic, []string{"second"})
		return err
	})
	return errors.Join(err, group.WaitForShares(topic, map[string]int{"first": groupPartitions}), group.Wrong())
}
