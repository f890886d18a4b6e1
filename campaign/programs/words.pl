# Strings, hashes, sorting, a child and a pipe.
use strict;
use warnings;
use POSIX qw(floor);
my %seen;
for my $i (1 .. 200_000) {
    $seen{ ($i * 7919) % 10007 } .= chr(97 + $i % 26);
}
my @sorted = sort { length $seen{$b} <=> length $seen{$a} || $a <=> $b } keys %seen;
my $big = 'x' x (8 << 20);
substr($big, floor(length($big) / 2), 1) = 'y';
open(my $pipe, '-|', 'perl', '-e', 'print join ",", map { $_ * $_ } 1 .. 1000') or die;
my @squares = split /,/, <$pipe>;
close $pipe or die;
die unless @sorted == 10007 and $squares[999] == 1_000_000 and index($big, 'y') == 4 << 20;
