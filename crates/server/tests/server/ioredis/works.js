// What a program does with ioredis. Arguments: port, password. Prints "ioredis works".
"use strict";
const assert = require("node:assert/strict");
const Redis = require("ioredis");

const [port, password] = process.argv.slice(2);
const options = { port: Number(port), host: "127.0.0.1", db: 3, retryStrategy: () => null };

async function refuses() {
  const redis = new Redis({ ...options, password: `${password}x`, lazyConnect: true });
  redis.on("error", () => {});
  await assert.rejects(redis.connect());
  redis.disconnect();
}

async function strings(redis) {
  assert.equal(await redis.set("k", "v"), "OK");
  assert.equal(await redis.get("k"), "v");
  assert.equal(await redis.get("missing"), null);
  assert.equal(await redis.set("k", "w", "NX"), null);
  assert.equal(await redis.set("k", "w", "PX", 100000, "XX"), "OK");
  assert.ok((await redis.pttl("k")) > 90000);
  assert.deepEqual(await redis.mset({ a: "1", b: "2" }), "OK");
  assert.deepEqual(await redis.mget("a", "missing", "b"), ["1", null, "2"]);
  assert.equal(await redis.incrby("a", 2), 3);
  const bytes = Buffer.from([0, 13, 10, 255]);
  await redis.set(bytes, bytes);
  assert.deepEqual(await redis.getBuffer(bytes), bytes);
  await assert.rejects(redis.incr(bytes), /ERR value is not an integer or out of range/);
  assert.equal(await redis.setbit("bits", 7, 1), 0);
  assert.equal(await redis.bitcount("bits"), 1);
  assert.equal(await redis.pfadd("sketch", "a", "b", "a"), 1);
  assert.equal(await redis.pfcount("sketch"), 2);
}

async function collections(redis) {
  assert.equal(await redis.hset("hash", { one: "1", two: "2" }), 2);
  assert.deepEqual(await redis.hgetall("hash"), { one: "1", two: "2" });
  assert.deepEqual(await redis.hmget("hash", "one", "none"), ["1", null]);
  assert.equal(await redis.rpush("list", "a", "b", "c"), 3);
  assert.deepEqual(await redis.lrange("list", 0, -1), ["a", "b", "c"]);
  assert.equal(await redis.lmove("list", "moved", "LEFT", "RIGHT"), "a");
  assert.equal(await redis.sadd("set", "x", "y"), 2);
  assert.deepEqual((await redis.smembers("set")).sort(), ["x", "y"]);
  assert.equal(await redis.zadd("sorted", 1, "one", 2.5, "more"), 2);
  assert.deepEqual(await redis.zrange("sorted", 0, -1, "WITHSCORES"), ["one", "1", "more", "2.5"]);
  assert.equal(await redis.zrank("sorted", "more"), 1);
  assert.equal(await redis.geoadd("places", 13.361389, 38.115556, "Palermo"), 1);
  assert.deepEqual(await redis.geosearch("places", "FROMLONLAT", 13, 38, "BYRADIUS", 90, "km"), ["Palermo"]);
  const dumped = await redis.dumpBuffer("hash");
  assert.equal(await redis.restore("copy", 0, dumped), "OK");
  assert.deepEqual(await redis.hgetall("copy"), { one: "1", two: "2" });
  assert.deepEqual(await redis.sort("list", "ALPHA", "DESC"), ["c", "b"]);
}

async function transactions(redis) {
  await redis.set("t", "1");
  assert.deepEqual(await redis.multi().incr("t").get("t").exec(), [[null, 2], [null, "2"]]);
  const other = redis.duplicate();
  await redis.watch("t");
  await other.set("t", "10");
  assert.equal(await redis.multi().incr("t").exec(), null);
  // A client that waits is served by the push of another.
  const popped = redis.blpop("queue", 5);
  while (!(await other.info("clients")).includes("blocked_clients:1")) {}
  assert.equal(await other.rpush("queue", "job"), 1);
  assert.deepEqual(await popped, ["queue", "job"]);
  other.disconnect();
}

async function scans(redis) {
  const pipeline = redis.pipeline();
  for (let i = 0; i < 1000; i += 1) pipeline.set(`p${i}`, `value ${i}`).hset("large", `f${i}`, i);
  const replies = await pipeline.exec();
  assert.ok(replies.length === 2000 && replies.every(([error]) => error === null));
  const found = new Set();
  for await (const keys of redis.scanStream({ match: "p*", count: 100 })) keys.forEach((key) => found.add(key));
  assert.ok([...Array(1000).keys()].every((i) => found.has(`p${i}`)));
  const fields = new Set();
  for await (const pairs of redis.hscanStream("large")) pairs.forEach((word) => fields.add(word));
  assert.ok(fields.has("f0") && fields.has("f999"));
}

async function main() {
  await refuses();
  const redis = new Redis({ ...options, password });
  for (const part of [strings, collections, transactions, scans]) await part(redis);
  await redis.flushdb();
  await redis.quit();
  console.log("ioredis works");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
