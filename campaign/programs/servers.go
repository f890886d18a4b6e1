// A Go program: goroutines, timers, files, children with pipes, and net/http over a Unix socket.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Println("servers:", err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		in, err := io.ReadAll(os.Stdin)
		check(err)
		fmt.Printf("child got %d\n", len(in))
		return
	}
	// goroutines, channels, timers
	var sum atomic.Int64
	var wg sync.WaitGroup
	for i := 0; i < 1000; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			time.Sleep(time.Duration(i%10) * time.Millisecond)
			sum.Add(int64(i))
		}()
	}
	wg.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	for i := 0; i < 5; i++ {
		<-tick.C
	}
	tick.Stop()
	// files
	dir, err := os.MkdirTemp("", "servers")
	check(err)
	defer os.RemoveAll(dir)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	check(os.WriteFile(filepath.Join(dir, "data"), data, 0o644))
	got, err := os.ReadFile(filepath.Join(dir, "data"))
	check(err)
	if len(got) != len(data) {
		check(fmt.Errorf("file has %d", len(got)))
	}
	// pipes and exec
	for i := 0; i < 5; i++ {
		cmd := exec.Command(os.Args[0], "child")
		in, err := cmd.StdinPipe()
		check(err)
		go func() { in.Write(data); in.Close() }()
		out, err := cmd.CombinedOutput()
		check(err)
		if string(out) != "child got 1048576\n" {
			check(fmt.Errorf("child says %q", out))
		}
	}
	// http over a Unix socket
	path := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", path)
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{
		MaxIdleConnsPerHost: 8,
		Dial:                func(string, string) (net.Conn, error) { return net.Dial("unix", path) },
	}}
	var requests atomic.Int64
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 50; j++ {
				r, err := client.Get("http://unix/files/data")
				check(err)
				body, err := io.ReadAll(r.Body)
				check(err)
				r.Body.Close()
				if len(body) != len(data) {
					check(fmt.Errorf("body has %d", len(body)))
				}
				requests.Add(1)
			}
		}()
	}
	wg.Wait()
	// deadline
	c, err := net.Dial("unix", path)
	check(err)
	c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); err == nil || !err.(net.Error).Timeout() {
		check(fmt.Errorf("no timeout: %v", err))
	}
	c.Close()
	check(server.Close())
	fmt.Printf("go: %d requests, sum %d\n", requests.Load(), sum.Load())
}
