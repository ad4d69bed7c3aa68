import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.BatchAppendEntryRequest;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/**
 * A member of DLedger with its default configuration, and a port for batches.
 *
 * <p>DLedger's own port takes single entries only: its batch call is for the program that embeds it, as
 * RocketMQ's broker does. This is such a program. A request on the batch port is a count, a size and so
 * many bodies of that size; the answer is a response code, in the order of the requests.
 */
public final class Member {
    private static final String GROUP = "bench";

    public static void main(String[] arguments) throws IOException {
        String id = arguments[0];
        DLedgerConfig config = new DLedgerConfig();
        config.setGroup(GROUP);
        config.setSelfId(id);
        config.setPeers(arguments[1]);
        config.setStoreBaseDir(arguments[2]);
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        InetAddress loopback = InetAddress.getLoopbackAddress();
        try (ServerSocket batches = new ServerSocket(Integer.parseInt(arguments[3]), 128, loopback)) {
            while (true) {
                Socket socket = batches.accept();
                new Thread(() -> serve(server, id, socket)).start();
            }
        }
    }

    private static void serve(DLedgerServer server, String id, Socket socket) {
        try (socket) {
            socket.setTcpNoDelay(true);
            DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 20));
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            while (true) {
                BatchAppendEntryRequest request = new BatchAppendEntryRequest();
                request.setGroup(GROUP);
                request.setRemoteId(id);
                request.setBatchMsgs(readBodies(in));
                server.handleAppend(request).whenComplete((response, error) -> answer(out, response, error));
            }
        } catch (EOFException closed) {
            // The client is done.
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static List<byte[]> readBodies(DataInputStream in) throws IOException {
        int count = in.readInt();
        int size = in.readInt();
        List<byte[]> bodies = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            bodies.add(in.readNBytes(size));
        }
        return bodies;
    }

    private static void answer(DataOutputStream out, AppendEntryResponse response, Throwable error) {
        synchronized (out) {
            try {
                out.writeInt(error == null ? response.getCode() : -1);
            } catch (IOException gone) {
                // The client left before its answer.
            }
        }
    }
}
