#!/usr/bin/env perl
# A client of Tidings in Perl, with only its core modules:
#   client.pl publish TOPIC EVENT..    publishes events, and waits until all are confirmed
#   client.pl listen TOPIC [FROM]      prints the seq and payload of each event
# The broker is at $TIDINGS_BROKER, or 127.0.0.1:12345.
use strict;
use warnings;
use IO::Socket::INET;

my $usage = "client.pl: usage: publish TOPIC EVENT.. or listen TOPIC [FROM]\n";
my ($command, $topic, @rest) = @ARGV;
die $usage unless defined $topic && $command =~ /^(publish|listen)$/;

my $broker = $ENV{TIDINGS_BROKER} // '127.0.0.1:12345';
my $socket = IO::Socket::INET->new(PeerAddr => $broker) or die "client.pl: no broker at $broker: $@\n";
$socket->autoflush(1);
$SIG{PIPE} = 'IGNORE';
$| = 1;

# Returns a line of the broker without its line end. Dies if it is an error, or if there is none.
sub hear {
    my $line = <$socket> // die "client.pl: connection lost; unconfirmed events may or may not be stored\n";
    $line =~ s/\r?\n$//;
    die "client.pl: $line\n" if $line =~ /^-ERR /;
    return $line;
}

# Lines before the answer to HELLO are for peers.
my $echo = sprintf '%08x%08x', map { int rand 2**32 } 1 .. 2;
print $socket "HELLO name=client.pl echo=$echo\n";
1 until hear() =~ /^\+OK .* echo=$echo /;

if ($command eq 'publish') {
    print $socket map { "PUB $topic $_\n" } @rest;
    # One answer may confirm several events: its last number counts all so far.
    my $confirmed = 0;
    while ($confirmed < @rest) {
        $confirmed = $1 if hear() =~ /^\+OK \d+ (\d+)$/;
    }
    print scalar(@rest), " confirmed\n";
} else {
    print $socket "SUB $topic", (@rest ? " from=$rest[0]" : ''), "\n";
    while (1) {
        my $line = hear();
        if ($line =~ /^MSG \S+ (.*)$/) { print "$1\n" }
        elsif ($line =~ /^(LAG|GAP) /) { print STDERR "$line\n" }
    }
}
