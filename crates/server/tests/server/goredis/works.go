// What a program does with go-redis. Arguments: port, password. Prints "go-redis works".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func equal(want, got any) {
	if !reflect.DeepEqual(want, got) {
		panic(fmt.Sprintf("want %#v, got %#v", want, got))
	}
}

// must gives the value of a reply that is no error.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	for _, protocol := range []int{2, 3} {
		options := redis.Options{
			Addr: "127.0.0.1:" + os.Args[1], Password: os.Args[2], DB: 3, Protocol: protocol, MaxRetries: -1,
		}
		wrong := options
		wrong.Password += "x"
		refused := redis.NewClient(&wrong)
		equal(true, refused.Ping(ctx).Err() != nil)
		refused.Close()
		client := redis.NewClient(&options)
		texts(client)
		collections(client)
		transactions(client)
		scans(client)
		must(client.FlushDB(ctx).Result())
		client.Close()
	}
	fmt.Println("go-redis works")
}

func texts(c *redis.Client) {
	equal("OK", must(c.Set(ctx, "k", "v", 0).Result()))
	equal("v", must(c.Get(ctx, "k").Result()))
	equal(true, errors.Is(c.Get(ctx, "missing").Err(), redis.Nil))
	equal(false, must(c.SetNX(ctx, "k", "w", 0).Result()))
	equal(true, must(c.SetXX(ctx, "k", "w", 100*time.Second).Result()))
	equal(true, must(c.PTTL(ctx, "k").Result()) > 90*time.Second)
	equal("OK", must(c.MSet(ctx, "a", 1, "b", 2).Result()))
	equal([]any{"1", nil, "2"}, must(c.MGet(ctx, "a", "missing", "b").Result()))
	equal(int64(3), must(c.IncrBy(ctx, "a", 2).Result()))
	equal(4.5, must(c.IncrByFloat(ctx, "a", 1.5).Result()))
	bytes := string([]byte{0, 13, 10, 255})
	equal("OK", must(c.Set(ctx, bytes, bytes, 0).Result()))
	equal("ERR value is not an integer or out of range", c.Incr(ctx, bytes).Err().Error())
	equal(int64(0), must(c.SetBit(ctx, "bits", 7, 1).Result()))
	equal(int64(1), must(c.BitCount(ctx, "bits", nil).Result()))
	equal(int64(1), must(c.PFAdd(ctx, "sketch", "a", "b", "a").Result()))
	equal(int64(2), must(c.PFCount(ctx, "sketch").Result()))
}

func collections(c *redis.Client) {
	equal(int64(2), must(c.HSet(ctx, "hash", "one", 1, "two", 2).Result()))
	equal(map[string]string{"one": "1", "two": "2"}, must(c.HGetAll(ctx, "hash").Result()))
	equal(int64(3), must(c.RPush(ctx, "list", "a", "b", "c").Result()))
	equal([]string{"a", "b", "c"}, must(c.LRange(ctx, "list", 0, -1).Result()))
	equal("a", must(c.LMove(ctx, "list", "moved", "LEFT", "RIGHT").Result()))
	equal(int64(2), must(c.SAdd(ctx, "set", "x", "y").Result()))
	equal(map[string]struct{}{"x": {}, "y": {}}, must(c.SMembersMap(ctx, "set").Result()))
	members := []redis.Z{{Score: 1, Member: "one"}, {Score: 2.5, Member: "more"}}
	equal(int64(2), must(c.ZAdd(ctx, "sorted", members...).Result()))
	equal(members, must(c.ZRangeWithScores(ctx, "sorted", 0, -1).Result()))
	equal(int64(1), must(c.ZRank(ctx, "sorted", "more").Result()))
	place := &redis.GeoLocation{Name: "Palermo", Longitude: 13.361389, Latitude: 38.115556}
	equal(int64(1), must(c.GeoAdd(ctx, "places", place).Result()))
	near := &redis.GeoSearchQuery{Longitude: 13, Latitude: 38, Radius: 90, RadiusUnit: "km"}
	equal([]string{"Palermo"}, must(c.GeoSearch(ctx, "places", near).Result()))
	dumped := must(c.Dump(ctx, "hash").Result())
	equal("OK", must(c.Restore(ctx, "copy", 0, dumped).Result()))
	equal(map[string]string{"one": "1", "two": "2"}, must(c.HGetAll(ctx, "copy").Result()))
	equal([]string{"c", "b"}, must(c.Sort(ctx, "list", &redis.Sort{Alpha: true, Order: "DESC"}).Result()))
}

func transactions(c *redis.Client) {
	must(c.Set(ctx, "t", 1, 0).Result())
	var seen *redis.IntCmd
	must(c.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		seen = pipe.Incr(ctx, "t")
		return nil
	}))
	equal(int64(2), seen.Val())
	late := c.Watch(ctx, func(tx *redis.Tx) error {
		must(c.Set(ctx, "t", 10, 0).Result())
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Incr(ctx, "t")
			return nil
		})
		return err
	}, "t")
	equal(true, errors.Is(late, redis.TxFailedErr))
	// A client that waits is served by the push of another.
	popped := make(chan []string)
	go func() { popped <- must(c.BLPop(ctx, 5*time.Second, "queue").Result()) }()
	for !strings.Contains(must(c.Info(ctx, "clients").Result()), "blocked_clients:1") {
	}
	equal(int64(1), must(c.RPush(ctx, "queue", "job").Result()))
	equal([]string{"queue", "job"}, <-popped)
}

func scans(c *redis.Client) {
	must(c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range 1000 {
			pipe.Set(ctx, fmt.Sprint("p", i), i, 0)
			pipe.HSet(ctx, "large", fmt.Sprint("f", i), i)
		}
		return nil
	}))
	found := map[string]bool{}
	keys := c.Scan(ctx, 0, "p*", 100).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	equal(nil, keys.Err())
	for i := range 1000 {
		equal(true, found[fmt.Sprint("p", i)])
	}
	equal(1000, len(must(c.HGetAll(ctx, "large").Result())))
}
