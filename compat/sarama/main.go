// Drive a broker with Sarama: one JSON line per case, as compat/README.md says.
//
// SARAMA_VERSION chooses the protocol version. With 0.10.2.0 Sarama writes and reads the old message sets.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

// driver has the cases. Each makes its own topics, so that any of them can run alone.
type driver struct {
	task    common.Task
	version sarama.KafkaVersion
}

func main() {
	task, err := common.FromEnvironment()
	version := sarama.MaxVersion
	if named := os.Getenv("SARAMA_VERSION"); named != "" && err == nil {
		version, err = sarama.ParseKafkaVersion(named)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	common.Run(task, (&driver{task: task, version: version}).cases())
}

func (d *driver) cases() map[string]common.Case {
	cases := map[string]common.Case{
		"api_versions":           d.apiVersions,
		"describe_cluster":       common.Plain(d.describeCluster),
		"create_topics":          common.Plain(d.createTopics),
		"acks":                   common.Plain(d.acks),
		"large_records":          common.Plain(d.largeRecords),
		"oversized_record":       common.Plain(d.oversizedRecord),
		"read_by_new":            common.Plain(d.readByNew),
		"read_by_old":            common.Plain(d.readByOld),
		"inside_of_a_wrapper":    common.Plain(d.insideOfAWrapper),
		"list_offsets":           common.Plain(d.listOffsets),
		"topic_configs":          common.Plain(d.topicConfigs),
		"alter_configs":          common.Plain(d.alterConfigs),
		"delete_records":         common.Plain(d.deleteRecords),
		"create_partitions":      common.Plain(d.createPartitions),
		"delete_topics":          common.Plain(d.deleteTopics),
		"auto_creation":          common.Plain(d.autoCreation),
		"group_classic":          common.Plain(d.classicGroup),
		"group_static_classic":   common.Plain(d.static),
		"group_admin_classic":    common.Plain(d.groupAdmin),
		"group_offset_manager":   common.Plain(d.offsetManager),
		"group_mixed_versions":   d.mixed,
		"group_restart_classic":  d.restart,
		"group_failover_classic": d.failover,
		"transactions":           common.Plain(d.transactions),
	}
	for name, codec := range codecs {
		cases["produce_"+name] = common.Plain(func() error { return d.produce(name, codec) })
	}
	for name := range strategies {
		cases["group_rebalance_"+name] = func() (string, error) { return d.rebalance(name, name, d) }
	}
	return cases
}

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

// hasHeaders tells whether records have headers at this version: they came with batches, in 0.11.
func (d *driver) hasHeaders() bool {
	return d.version.IsAtLeast(sarama.V0_11_0_0)
}

// records returns the common set as this version can carry it.
func (d *driver) records(partitions int32, start, end int) []common.Record {
	records := common.Range(partitions, start, end, d.task.EpochMs)
	if !d.hasHeaders() {
		return withoutHeaders(records)
	}
	return records
}

func withoutHeaders(records []common.Record) []common.Record {
	for at := range records {
		records[at].Headers = nil
	}
	return records
}

func (d *driver) config() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "compat-sarama"
	config.Version = d.version
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	// Closing a consumer waits for the fetch that is under way.
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Admin.Timeout = common.WaitLimit
	return config
}

func (d *driver) withAdmin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(d.addresses(), d.config())
	if err != nil {
		return err
	}
	return errors.Join(use(admin), admin.Close())
}

func (d *driver) create(topic string, partitions int32, configs map[string]string) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for name, value := range configs {
		detail.ConfigEntries[name] = &value
	}
	return d.withAdmin(func(admin sarama.ClusterAdmin) error { return admin.CreateTopic(topic, detail, false) })
}

func (d *driver) send(topic string, records []common.Record, config *sarama.Config) error {
	producer, err := sarama.NewSyncProducer(d.addresses(), config)
	if err != nil {
		return err
	}
	sending := producer.SendMessages(messages(topic, records))
	var refused sarama.ProducerErrors
	if errors.As(sending, &refused) {
		// Its own words only count the records.
		sending = fmt.Errorf("%w The first one: %w", sending, refused[0].Err)
	}
	return errors.Join(sending, producer.Close())
}

func messages(topic string, records []common.Record) []*sarama.ProducerMessage {
	var all []*sarama.ProducerMessage
	for _, one := range records {
		message := &sarama.ProducerMessage{
			Topic: topic, Partition: one.Partition, Timestamp: time.UnixMilli(one.TimestampMs),
		}
		if one.Key != nil {
			message.Key = sarama.ByteEncoder(one.Key)
		}
		if one.Value != nil {
			message.Value = sarama.ByteEncoder(one.Value)
		}
		for _, header := range one.Headers {
			message.Headers = append(
				message.Headers, sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value},
			)
		}
		all = append(all, message)
	}
	return all
}

// read returns `count` records of one partition, without a group, and checks that their offsets follow each other.
func (d *driver) read(topic string, partition int32, start int64, count int, config *sarama.Config) ([]common.Record, error) {
	consumer, err := sarama.NewConsumer(d.addresses(), config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	part, err := consumer.ConsumePartition(topic, partition, start)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	var found []common.Record
	last := int64(-1)
	for limit := time.After(common.WaitLimit); len(found) < count; {
		select {
		case message := <-part.Messages():
			if last >= 0 && message.Offset != last+1 && config.Consumer.IsolationLevel == sarama.ReadUncommitted {
				return nil, fmt.Errorf("offset %d follows %d", message.Offset, last)
			}
			last = message.Offset
			found = append(found, asRecord(message))
		case err := <-part.Errors():
			return nil, err
		case <-limit:
			return nil, fmt.Errorf("%d of %d records of partition %d in time", len(found), count, partition)
		}
	}
	return found, nil
}

func asRecord(message *sarama.ConsumerMessage) common.Record {
	one := common.Record{
		Partition: message.Partition, Key: message.Key, Value: message.Value,
		TimestampMs: message.Timestamp.UnixMilli(),
	}
	for _, header := range message.Headers {
		one.Headers = append(one.Headers, common.Header{Key: string(header.Key), Value: header.Value})
	}
	return one
}

func (d *driver) compare(topic string, partitions int32, wanted []common.Record, config *sarama.Config) error {
	for partition := range partitions {
		part := common.Part(wanted, partition)
		got, err := d.read(topic, partition, sarama.OffsetOldest, len(part), config)
		if err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
		if err := common.Same(got, part); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}
