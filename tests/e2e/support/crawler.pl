#!/usr/bin/perl
# A crawler of somebody else's: it can be sent SIGUSR1, and looks into a directory then.
# crawler.pl PID-FILE SPOOL LOG
use strict;
use warnings;
use POSIX ();

my ($pid_file, $spool, $log) = @ARGV;
my $rung = 0;
$SIG{USR1} = sub { $rung = 1 };

open(my $out, '>>', $log) or die "$log: $!";
$out->autoflush(1);
open(my $pid, '>', $pid_file) or die "$pid_file: $!";
print $pid "$$\n";
close($pid);

# A signal that comes between the look and the sleep is one that waits.
my $bell = POSIX::SigSet->new(POSIX::SIGUSR1());
my $nothing = POSIX::SigSet->new();
POSIX::sigprocmask(POSIX::SIG_BLOCK(), $bell);
while (1) {
    POSIX::sigsuspend($nothing) unless $rung;
    next unless $rung;
    $rung = 0;
    opendir(my $dir, $spool) or die "$spool: $!";
    for my $name (sort grep { !/^\./ } readdir($dir)) {
        open(my $in, '<', "$spool/$name") or die "$name: $!";
        my @lines = <$in>;
        close($in);
        print $out @lines == 1 && $lines[0] =~ /\n\z/ ? $lines[0] : "torn: @lines\n";
        unlink("$spool/$name") or die "$name: $!";
    }
}
