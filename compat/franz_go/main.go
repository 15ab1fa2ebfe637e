// Drive a broker with franz-go: one JSON line per case, as compat/README.md says.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/compat/common"
)

// driver has the cases. Each makes its own topics, so that any of them can run alone.
type driver struct {
	task  common.Task
	plain *kgo.Client
	admin *kadm.Client
}

func main() {
	task, err := common.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "COMPAT_EPOCH_MS:", err)
		os.Exit(2)
	}
	self, err := newDriver(task)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer self.plain.Close()
	common.Run(task, self.cases())
}

// newDriver returns a driver of the broker that the task names. The caller closes its plain client.
func newDriver(task common.Task) (*driver, error) {
	self := &driver{task: task}
	client, err := self.client()
	if err != nil {
		return nil, err
	}
	self.plain, self.admin = client, kadm.NewClient(client)
	return self, nil
}

func (d *driver) cases() map[string]common.Case {
	cases := map[string]common.Case{
		"api_versions":      d.apiVersions,
		"describe_cluster":  common.Plain(d.describeCluster),
		"create_topics":     common.Plain(d.createTopics),
		"acks":              common.Plain(d.acks),
		"large_records":     common.Plain(d.largeRecords),
		"oversized_record":  common.Plain(d.oversizedRecord),
		"list_offsets":      common.Plain(d.listOffsets),
		"topic_configs":     common.Plain(d.topicConfigs),
		"delete_records":    common.Plain(d.deleteRecords),
		"create_partitions": common.Plain(d.createPartitions),
		"delete_topics":     common.Plain(d.deleteTopics),
		"log_dirs":          common.Plain(d.logDirs),
		"auto_creation":     common.Plain(d.autoCreation),
		"long_poll":         common.Plain(d.longPoll),
		"transactions":      common.Plain(d.transactions),
		"group_upgrade":     func() (string, error) { return d.migrate("upgrade", "classic", "consumer") },
		"group_downgrade":   func() (string, error) { return d.migrate("downgrade", "consumer", "classic") },
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		cases["produce_"+name] = common.Plain(func() error { return d.produce(name, codec) })
	}
	for name := range protocols {
		cases["group_"+name] = common.Plain(func() error { return d.group(name) })
		cases["group_rebalance_"+name] = func() (string, error) { return d.rebalance(name) }
		cases["group_static_"+name] = common.Plain(func() error { return d.static(name) })
		cases["group_regex_"+name] = common.Plain(func() error { return d.regex(name) })
		cases["group_admin_"+name] = common.Plain(func() error { return d.groupAdmin(name) })
		cases["group_restart_"+name] = func() (string, error) { return d.restart(name) }
		cases["group_failover_"+name] = func() (string, error) { return d.failover(name) }
	}
	return cases
}

func (d *driver) client(more ...kgo.Opt) (*kgo.Client, error) {
	settings := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(d.task.Bootstrap, ",")...),
		kgo.ClientID("compat-franz-go"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	return kgo.NewClient(append(settings, more...)...)
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), common.WaitLimit)
}

func (d *driver) create(topic string, partitions int32, configs map[string]string) error {
	ctx, cancel := limited()
	defer cancel()
	values := map[string]*string{}
	for name, value := range configs {
		values[name] = &value
	}
	_, err := d.admin.CreateTopic(ctx, partitions, 1, values, topic)
	return err
}

func (d *driver) send(topic string, records []common.Record, more ...kgo.Opt) error {
	client, err := d.client(more...)
	if err != nil {
		return err
	}
	defer client.Close()
	return sendWith(client, topic, records)
}

func sendWith(client *kgo.Client, topic string, records []common.Record) error {
	ctx, cancel := limited()
	defer cancel()
	batch := make([]*kgo.Record, 0, len(records))
	for _, one := range records {
		sent := &kgo.Record{
			Topic: topic, Partition: one.Partition, Key: one.Key, Value: one.Value,
			Timestamp: time.UnixMilli(one.TimestampMs),
		}
		for _, header := range one.Headers {
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: header.Key, Value: header.Value})
		}
		batch = append(batch, sent)
	}
	return client.ProduceSync(ctx, batch...).FirstErr()
}

// read returns `count` records from the beginning, by partition, without a group.
func (d *driver) read(topic string, partitions int32, count int, more ...kgo.Opt) (map[int32][]common.Record, error) {
	starts := map[int32]kgo.Offset{}
	for partition := range partitions {
		starts[partition] = kgo.NewOffset().AtStart()
	}
	client, err := d.client(append(more, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return readWith(client, count)
}

func readWith(client *kgo.Client, count int) (map[int32][]common.Record, error) {
	ctx, cancel := limited()
	defer cancel()
	found := map[int32][]common.Record{}
	for read := 0; read < count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("after %d of %d records: %w", read, count, err)
		}
		fetches.EachRecord(func(got *kgo.Record) {
			one := common.Record{
				Partition: got.Partition, Key: got.Key, Value: got.Value, TimestampMs: got.Timestamp.UnixMilli(),
			}
			for _, header := range got.Headers {
				one.Headers = append(one.Headers, common.Header{Key: header.Key, Value: header.Value})
			}
			found[got.Partition] = append(found[got.Partition], one)
			read++
		})
	}
	return found, nil
}

func (d *driver) compare(topic string, partitions int32, wanted []common.Record, more ...kgo.Opt) error {
	got, err := d.read(topic, partitions, len(wanted), more...)
	if err != nil {
		return err
	}
	for partition := range partitions {
		if err := common.Same(got[partition], common.Part(wanted, partition)); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}
