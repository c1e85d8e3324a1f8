package bendybus;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.servicebus.jms.ServiceBusJmsConnectionFactory;
import com.azure.servicebus.jms.ServiceBusJmsConnectionFactorySettings;
import jakarta.jms.ConnectionFactory;
import java.net.MalformedURLException;
import java.net.URI;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;

/** A server by its connection string, and the SDK's clients for it, made as a user would make them. */
record Broker(String connectionString) {
    static final Broker STANDARD = new Broker(System.getenv("BENDYBUS_STANDARD"));
    static final Broker PREMIUM = new Broker(System.getenv("BENDYBUS_PREMIUM"));
    static final Broker PREMIUM_UNPARTITIONED = new Broker(System.getenv("BENDYBUS_PREMIUM_UNPARTITIONED"));

    /** Long enough for a loaded machine; who waits for something that comes does not wait so long. */
    static final Duration PATIENCE = Duration.ofSeconds(20);

    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static final String PLAIN_TCP = ";UseDevelopmentEmulator=true";

    /** What every rule of a transaction is to be shown on. */
    enum Kind {
        UNPARTITIONED(STANDARD, false),
        SIXTEEN_PARTITIONS(STANDARD, true),
        TWO_PARTITIONS(PREMIUM, true);

        final Broker broker;
        final boolean partitioned;

        Kind(Broker broker, boolean partitioned) {
            this.broker = broker;
            this.partitioned = partitioned;
        }

        String newQueue() {
            return newQueue(new CreateQueueOptions());
        }

        String newQueue(CreateQueueOptions options) {
            String name = newName("q");
            broker.administration().createQueue(name, options.setPartitioningEnabled(partitioned));
            return name;
        }

        String newTopic() {
            String name = newName("t");
            broker.administration().createTopic(name, new CreateTopicOptions().setPartitioningEnabled(partitioned));
            return name;
        }
    }

    /** Who speaks JMS. */
    enum Provider {
        /** A client that knows nothing of Service Bus. */
        QPID {
            @Override
            ConnectionFactory factory(Broker broker, String clientId) {
                JmsConnectionFactory factory = broker.jms();
                factory.setClientID(clientId);
                return factory;
            }
        },
        /** Microsoft's, which is always over TLS. */
        AZURE {
            @Override
            ConnectionFactory factory(Broker broker, String clientId) {
                var settings = new ServiceBusJmsConnectionFactorySettings();
                // A refusal is to be seen, not retried.
                settings.setShouldReconnect(false);
                // From a connection string it takes the host without the port.
                var factory = new ServiceBusJmsConnectionFactory(
                    broker.part("SharedAccessKeyName"), broker.part("SharedAccessKey"), "localhost:" + broker.port(), settings);
                if (clientId != null) {
                    factory.setClientId(clientId);
                }
                return factory;
            }
        };

        /** `clientId`: null for none. */
        abstract ConnectionFactory factory(Broker broker, String clientId);
    }

    static String newName(String prefix) {
        return "java-" + prefix + NUMBERS.incrementAndGet();
    }

    /** Over plain TCP, as with the emulator: the flag in the connection string asks for it. */
    ServiceBusClientBuilder builder() {
        // A refusal is to be seen, not retried.
        AmqpRetryOptions once = new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(PATIENCE);
        return new ServiceBusClientBuilder().connectionString(connectionString).retryOptions(once);
    }

    /** Over TLS: the same connection string without the flag, and a trust store that holds the certificate. */
    ServiceBusClientBuilder tlsBuilder() {
        return builder().connectionString(connectionString.replace(PLAIN_TCP, ""));
    }

    /** Always https; it drops the port of a connection string, so a policy has to put it back. */
    ServiceBusAdministrationClient administration() {
        return new ServiceBusAdministrationClientBuilder()
            .connectionString(connectionString.replace(PLAIN_TCP, ""))
            .addPolicy((context, next) -> {
                try {
                    var request = context.getHttpRequest();
                    request.setUrl(UrlBuilder.parse(request.getUrl()).setPort(port()).toUrl());
                } catch (MalformedURLException impossible) {
                    throw new IllegalStateException(impossible);
                }
                return next.process();
            })
            .buildClient();
    }

    /** For a JMS client, which logs in by SASL PLAIN with the name and the key of a rule. */
    JmsConnectionFactory jms() {
        var factory = new JmsConnectionFactory("amqp://" + endpoint().getHost() + ":" + port());
        factory.setUsername(part("SharedAccessKeyName"));
        factory.setPassword(part("SharedAccessKey"));
        // What is sent has arrived, messages that need not be kept too.
        factory.setForceSyncSend(true);
        return factory;
    }

    private int port() {
        return endpoint().getPort();
    }

    private URI endpoint() {
        return URI.create(part("Endpoint"));
    }

    private String part(String name) {
        return Arrays.stream(connectionString.split(";")).filter(part -> part.startsWith(name + "="))
            .findFirst().orElseThrow().substring(name.length() + 1);
    }
}
