import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Threads that fill the heap until it is collected some times. */
public class Threads {
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(6);
        List<Future<Long>> parts = new ArrayList<>();
        for (int i = 0; i < 24; i++) {
            final int seed = i;
            parts.add(pool.submit(() -> {
                List<byte[]> kept = new ArrayList<>();
                long sum = 0;
                for (int n = 0; n < 200; n++) {
                    byte[] block = new byte[1 << 14 + n % 4];
                    block[n] = (byte) seed;
                    if (n % 10 == 0) {
                        kept.add(block);
                    }
                    sum += block[n];
                }
                return sum + kept.size();
            }));
        }
        long total = 0;
        for (Future<Long> part : parts) {
            total += part.get();
        }
        pool.shutdown();
        Thread last = new Thread(System::gc);
        last.start();
        last.join();
        if (total != 55680) {
            throw new IllegalStateException("sum " + total);
        }
    }
}
