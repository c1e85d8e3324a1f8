package bendybus;

import static bendybus.Table.message;
import static bendybus.Table.receive;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Transactions and a server that is killed. */
class CrashTest {
    /** A server of the test's own. */
    private static final class Server implements AutoCloseable {
        private final Process process;
        final Broker broker;

        Server(Path data) throws IOException {
            var command = new ArrayList<>(List.of(System.getenv("BENDYBUS_SERVE").split(" ")));
            command.addAll(List.of("--data", data.toString(), "--port", "0", "--admin-port", "0"));
            process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            var ready = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
            broker = new Broker(ready.replace("ready ", ""));
        }

        void kill() throws InterruptedException {
            process.destroyForcibly().waitFor();
        }

        @Override
        public void close() {
            process.destroy();
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aCrashBeforeTheCommitUndoesAllAndOneAfterItNothing(boolean partitioned, @TempDir Path data) // P-23
        throws Exception {
        try (var server = new Server(data)) {
            var options = new CreateQueueOptions().setPartitioningEnabled(partitioned);
            server.broker.administration().createQueue("q", options);
            // Not closed: the server is gone by then, and closing would wait for it.
            var table = new Table(server.broker.builder());
            var sender = table.sender("q");
            sender.sendMessages(List.of(message("old 1", "k"), message("old 2", "k")));
            var receiver = table.receiver("q");
            var old = receive(receiver, 2);
            var committed = sender.createTransaction();
            sender.sendMessage(message("new 1", "k"), committed);
            receiver.complete(old.get(0), new CompleteOptions().setTransactionContext(committed));
            sender.commitTransaction(committed);
            var open = sender.createTransaction();
            sender.sendMessage(message("new 2", "k"), open);
            receiver.complete(old.get(1), new CompleteOptions().setTransactionContext(open));
            server.kill();
        }
        try (var server = new Server(data); var table = new Table(server.broker.builder())) {
            assertEquals(List.of("new 1", "old 2"), table.contents("q"));
            var messages = receive(table.receiver("q"), 2);
            assertTrue(messages.stream().allMatch(message -> message.getDeliveryCount() == 0));
        }
    }
}
