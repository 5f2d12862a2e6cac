/* A proxy without high-water marks, the usual way to connect many publishers with many subscribers by ZeroMQ.
 * Publishers connect to the first port, subscribers to the second.  Build: cc -O2 zmq_proxy.c -lzmq */
#include <stdio.h>
#include <zmq.h>

static void *bind_socket(void *context, int type, const char *port)
{
	char address[64];
	int unlimited = 0, backlog = 1024;
	void *socket = zmq_socket(context, type);

	zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
	zmq_setsockopt(socket, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
	zmq_setsockopt(socket, ZMQ_BACKLOG, &backlog, sizeof backlog);
	snprintf(address, sizeof address, "tcp://127.0.0.1:%s", port);
	return zmq_bind(socket, address) == 0 ? socket : NULL;
}

int main(int argc, char **argv)
{
	void *context = zmq_ctx_new(), *in, *out;

	zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 65536);
	if (argc != 3 || !(in = bind_socket(context, ZMQ_XSUB, argv[1])) || !(out = bind_socket(context, ZMQ_XPUB, argv[2]))) {
		fprintf(stderr, "usage: zmq_proxy PUBLISHERS-PORT SUBSCRIBERS-PORT (both unused)\n");
		return 1;
	}
	return zmq_proxy(in, out, NULL);
}
