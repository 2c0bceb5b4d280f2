import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisAccessControlException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

/** What a program does with jedis. Arguments: port, password. Prints "jedis works". */
public class JedisWorks {
    public static void main(String[] args) {
        HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
        refuses(address, args[1] + "x");
        for (RedisProtocol protocol : RedisProtocol.values()) {
            DefaultJedisClientConfig config = DefaultJedisClientConfig.builder()
                .protocol(protocol).password(args[1]).database(3).clientName("jedis-test").build();
            try (Jedis jedis = new Jedis(address, config)) {
                connects(jedis, protocol);
                strings(jedis);
                transactions(jedis, address, config);
                pipelines(jedis);
                scans(jedis);
                jedis.flushDB();
            }
            pooled(address, config);
        }
        System.out.println("jedis works");
    }

    static void refuses(HostAndPort address, String password) {
        try (Jedis jedis = new Jedis(address)) {
            jedis.get("k");
            throw new AssertionError("served without a password");
        } catch (JedisDataException expected) {
            equal(true, expected.getMessage().startsWith("NOAUTH"));
        }
        try (Jedis jedis = new Jedis(address)) {
            jedis.auth(password);
            throw new AssertionError("served with a wrong password");
        } catch (JedisAccessControlException expected) {
            equal(true, expected.getMessage().startsWith("WRONGPASS"));
        }
    }

    static void connects(Jedis jedis, RedisProtocol protocol) {
        equal("PONG", jedis.ping());
        equal("jedis-test", jedis.clientGetname());
        String info = jedis.clientInfo();
        equal(true, info.contains(" db=3 ") && info.contains("lib-name=jedis"));
        equal(true, info.contains("resp=" + protocol.version()));
        equal("OK", jedis.select(4));
        equal("OK", jedis.set("elsewhere", "4"));
        equal("OK", jedis.select(3));
        equal(null, jedis.get("elsewhere"));
        equal(true, jedis.info("server").contains("redis_version"));
        equal(true, jedis.configGet("maxmemory*").containsKey("maxmemory"));
    }

    static void strings(Jedis jedis) {
        equal("OK", jedis.set("k", "v"));
        equal("v", jedis.get("k"));
        equal(null, jedis.get("missing"));
        equal(null, jedis.set("k", "w", SetParams.setParams().nx()));
        equal("OK", jedis.set("k", "w", SetParams.setParams().xx().px(100_000)));
        equal(true, jedis.pttl("k") > 90_000 && jedis.ttl("k") <= 100);
        equal(1L, jedis.persist("k"));
        equal(-1L, jedis.ttl("k"));
        equal(1L, jedis.pexpireAt("k", 1));
        equal(false, jedis.exists("k"));
        equal("OK", jedis.mset("a", "1", "b", "2"));
        equal(java.util.Arrays.asList("1", null, "2"), jedis.mget("a", "missing", "b"));
        equal(3L, jedis.incrBy("a", 2));
        equal(4.5, jedis.incrByFloat("a", 1.5));
        equal("string", jedis.type("a"));
        equal(2L, jedis.del("a", "b"));
        byte[] bytes = {0, 13, 10, -1};
        jedis.set(bytes, bytes);
        equal(true, java.util.Arrays.equals(bytes, jedis.get(bytes)));
        try {
            jedis.incr(bytes);
            throw new AssertionError("those bytes are no number");
        } catch (JedisDataException expected) {
            equal("ERR value is not an integer or out of range", expected.getMessage());
        }
    }

    static void transactions(Jedis jedis, HostAndPort address, DefaultJedisClientConfig config) {
        jedis.set("t", "1");
        Transaction whole = jedis.multi();
        Response<Long> seen = whole.incr("t");
        whole.get("t");
        equal(List.of(2L, "2"), whole.exec());
        equal(2L, seen.get());
        jedis.watch("t");
        try (Jedis other = new Jedis(address, config)) {
            other.set("t", "10");
        }
        Transaction late = jedis.multi();
        late.incr("t");
        equal(null, late.exec());
        Transaction dropped = jedis.multi();
        dropped.set("t", "11");
        dropped.discard();
        equal("10", jedis.get("t"));
    }

    static void pipelines(Jedis jedis) {
        Pipeline pipeline = jedis.pipelined();
        List<Response<String>> written = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            written.add(pipeline.set("p" + i, "value " + i));
        }
        Response<String> read = pipeline.get("p999");
        pipeline.sync();
        written.forEach(reply -> equal("OK", reply.get()));
        equal("value 999", read.get());
    }

    static void scans(Jedis jedis) {
        Set<String> found = new TreeSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> page = jedis.scan(cursor, new ScanParams().match("p*").count(100));
            found.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        equal(1000, found.size());
        equal(true, jedis.keys("p99*").size() == 11);
    }

    static void pooled(HostAndPort address, DefaultJedisClientConfig config) {
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setTestOnBorrow(true);
        try (JedisPooled jedis = new JedisPooled(pool, address, config)) {
            equal("OK", jedis.setex("pooled", 100, "x"));
            equal("x", jedis.getDel("pooled"));
        }
    }

    static void equal(Object expected, Object actual) {
        if (!java.util.Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + expected + ", not " + actual);
        }
    }
}
