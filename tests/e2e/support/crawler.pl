#!/usr/bin/perl
# A stand-in for an existing crawler: on SIGUSR1 it reads the files of a spool directory.
# crawler.pl PID-FILE SPOOL LOG
use strict;
use warnings;
use POSIX ();

my ($pid_file, $spool, $log) = @ARGV;
my $is_signalled = 0;
$SIG{USR1} = sub { $is_signalled = 1 };

open(my $out, '>>', $log) or die "$log: $!";
$out->autoflush(1);
open(my $pid, '>', $pid_file) or die "$pid_file: $!";
print $pid "$$\n";
close($pid);

# The signal is blocked except in sigsuspend, so none is lost between the check and the sleep.
my $usr1 = POSIX::SigSet->new(POSIX::SIGUSR1());
my $empty = POSIX::SigSet->new();
POSIX::sigprocmask(POSIX::SIG_BLOCK(), $usr1);
while (1) {
    POSIX::sigsuspend($empty) unless $is_signalled;
    next unless $is_signalled;
    $is_signalled = 0;
    opendir(my $dir, $spool) or die "$spool: $!";
    for my $name (sort grep { !/^\./ } readdir($dir)) {
        open(my $in, '<', "$spool/$name") or die "$name: $!";
        my @lines = <$in>;
        close($in);
        print $out @lines == 1 && $lines[0] =~ /\n\z/ ? $lines[0] : "torn: @lines\n";
        unlink("$spool/$name") or die "$name: $!";
    }
}
