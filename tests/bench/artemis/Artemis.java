import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.core.config.CoreAddressConfiguration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/**
 * Apache Artemis with durable queues and topics, and a sync to disk before every acknowledgement.
 *
 * <p>Arguments: the data folder, the port, the port for TLS, a PEM file with key and certificate, then the
 * entities: `queue` or `topic:subscription,subscription`. The settings are those that `artemis create`
 * writes, among them the time that the journal gathers writes, which it takes from the disk.
 */
public class Artemis {
  private static final int SYNCS = 250;
  private static final int SYNC_BYTES = 4096;
  private static final String ACCEPTOR =
      "tcp://127.0.0.1:%s?protocols=AMQP;tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576;useEpoll=true;"
          + "amqpCredits=1000;amqpLowCredits=300;amqpMinLargeMessageSize=102400;amqpDuplicateDetection=true";

  public static void main(String[] arguments) throws Exception {
    Path data = Path.of(arguments[0]);
    ConfigurationImpl settings = new ConfigurationImpl();
    settings.setPersistenceEnabled(true).setSecurityEnabled(false).setJournalType(JournalType.NIO);
    settings.setJournalSyncNonTransactional(true).setJournalSyncTransactional(true).setJournalDatasync(true);
    settings.setJournalBufferTimeout_NIO(nanosecondsOfSync(data));
    settings.setMaxDiskUsage(-1); // however full the disk is: a blocked sender would only hang
    settings.setJournalDirectory(data + "/journal").setBindingsDirectory(data + "/bindings");
    settings.setLargeMessagesDirectory(data + "/large").setPagingDirectory(data + "/paging");
    String plain = String.format(ACCEPTOR, arguments[1]);
    settings.addAcceptorConfiguration("plain", plain);
    String tls = String.format(ACCEPTOR, arguments[2]);
    String key = ";sslEnabled=true;keyStoreType=PEM;keyStorePath=" + arguments[3];
    settings.addAcceptorConfiguration("tls", tls + key);
    for (int i = 4; i < arguments.length; i++) {
      addEntity(settings, arguments[i]);
    }
    new EmbeddedActiveMQ().setConfiguration(settings).start();
    System.out.println("ready");
  }

  private static void addEntity(ConfigurationImpl settings, String described) {
    String[] parts = described.split(":");
    boolean isTopic = parts.length > 1;
    RoutingType routing = isTopic ? RoutingType.MULTICAST : RoutingType.ANYCAST;
    CoreAddressConfiguration address = new CoreAddressConfiguration().setName(parts[0]).addRoutingType(routing);
    for (String queue : (isTopic ? parts[1] : parts[0]).split(",")) {
      address.addQueueConfig(
          QueueConfiguration.of(SimpleString.of(queue)).setAddress(parts[0]).setRoutingType(routing).setDurable(true));
    }
    settings.addAddressConfiguration(address);
  }

  /** How long a write with a sync takes here: `artemis create` lets the journal gather writes for so long. */
  private static int nanosecondsOfSync(Path data) throws Exception {
    Path file = data.resolve("sync");
    ByteBuffer block = ByteBuffer.allocateDirect(SYNC_BYTES);
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
      channel.write(ByteBuffer.allocate(SYNCS * SYNC_BYTES), 0);
      channel.force(true);
      long began = System.nanoTime();
      for (int i = 0; i < SYNCS; i++) {
        channel.write(block.clear(), (long) i * SYNC_BYTES);
        channel.force(false);
      }
      return (int) ((System.nanoTime() - began) / SYNCS);
    } finally {
      Files.delete(file);
    }
  }
}
