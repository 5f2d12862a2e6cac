#!/usr/bin/env perl
# A client of Tidings in Perl, with what comes with it:
#   client.pl publish TOPIC EVENT..    publishes, and waits until all of them are safe
#   client.pl listen TOPIC [FROM]      prints number and payload of what comes
# The broker is at $TIDINGS_BROKER, or 127.0.0.1:12345.
use strict;
use warnings;
use IO::Socket::INET;

my $usage = "client.pl: publish TOPIC EVENT.. or listen TOPIC [FROM]\n";
my ($command, $topic, @rest) = @ARGV;
die $usage unless defined $topic && $command =~ /^(publish|listen)$/;

my $broker = $ENV{TIDINGS_BROKER} // '127.0.0.1:12345';
my $socket = IO::Socket::INET->new(PeerAddr => $broker) or die "client.pl: no broker at $broker: $@\n";
$socket->autoflush(1);
$SIG{PIPE} = 'IGNORE';
$| = 1;

# A line of the broker, without its end. A refusal is an error, and so is the end.
sub hear {
    my $line = <$socket> // die "client.pl: the connection was lost; what was not confirmed may be there or not\n";
    $line =~ s/\r?\n$//;
    die "client.pl: $line\n" if $line =~ /^-ERR /;
    return $line;
}

# What comes before the answer is for peers.
my $echo = sprintf '%08x%08x', map { int rand 2**32 } 1 .. 2;
print $socket "HELLO name=client.pl echo=$echo\n";
1 until hear() =~ /^\+OK .* echo=$echo /;

if ($command eq 'publish') {
    print $socket map { "PUB $topic $_\n" } @rest;
    # One answer may confirm many: the number at its end says how many by now.
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
