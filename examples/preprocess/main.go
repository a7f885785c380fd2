// Command preprocess prepares its input while the request is on its way: the scheduler is told when the input will be
// there, and takes the request into no batch before. Its server runs in the same process.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"downbeat.dev"
	"downbeat.dev/frontend"
)

func main() {
	models := flag.String("models", "../models", "model repository")
	name := flag.String("model", "classifier", "model to ask")
	flag.Parse()
	if err := run(*models, *name); err != nil {
		log.Fatal(err)
	}
}

func run(models, name string) error {
	config := downbeat.Default()
	config.Models, config.Emulate = models, 1
	config.Prompt = 0 // batches always wait for more requests, as under load
	system, err := downbeat.Start(context.Background(), config)
	if err != nil {
		return err
	}
	defer system.Close()

	before, err := timeRequest(system.Client(), name, false)
	if err != nil {
		return err
	}
	beside, err := timeRequest(system.Client(), name, true)
	if err != nil {
		return err
	}
	fmt.Printf("decoded before the request was submitted:  %v in all\n", before.Round(time.Millisecond))
	fmt.Printf("decoded while the request was on its way:    %v in all\n", beside.Round(time.Millisecond))
	return nil
}

// timeRequest sends one request and returns the time from the image's arrival to the output.
func timeRequest(client *frontend.Client, name string, overlap bool) (time.Duration, error) {
	input, err := client.NewInput(name)
	if err != nil {
		return 0, err
	}
	defer input.Free()

	arrived := time.Now()
	request := frontend.Request{Model: name, Input: input}
	if overlap {
		request.Prepare, request.PrepareTime = decode, 25*time.Millisecond
	} else if err := decode(input.Bytes()); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	result, err := client.Do(ctx, request)
	if err != nil {
		return 0, err
	}
	defer result.Release()
	return time.Since(arrived), nil
}

// decode simulates a program's image decoding: 20 ms of work.
func decode(pixels []byte) error {
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
		for i := range pixels {
			pixels[i]++
		}
	}
	return nil
}
